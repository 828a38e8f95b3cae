"""A notebook's functions and classes in child processes of a rank, by each start method.

Python 3.14 starts them by forkserver on Linux, where earlier ones fork.
"""

from __future__ import annotations

import pytest

from sparkdl_runner import DistributedRunner

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

NOTEBOOK = """
import multiprocessing
from dataclasses import dataclass

factor = 3

@dataclass
class Row:
    n: int

class Rows:
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return Row(i * factor)

class OddError(ValueError):
    pass

def square(x):
    return Row(x * x)

def refuse(x):
    raise OddError(x)

def put(queue, x):
    queue.put(Row(x))

def train(method):
    import torch
    import torch.multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from torch.utils.data import DataLoader

    offset, seen = 7, {}

    def closure(x):
        return Row(x + offset)

    with multiprocessing.get_context(method).Pool(1) as pool:
        seen["pool"] = pool.map(square, range(3)) == [Row(0), Row(1), Row(4)]
        seen["lambda"] = pool.map(lambda x: x + offset, range(3)) == [7, 8, 9]
        seen["closure"] = pool.map(closure, [1]) == [Row(8)]
        try:
            pool.map(refuse, [1])
        except OddError as error:
            seen["error"] = error.args == (1,)
    context = torch.multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, context, initializer=lambda: None) as pool:
        seen["executor"] = list(pool.map(square, [3])) == [Row(9)]
    queue = context.Queue()
    process = context.Process(target=put, args=(queue, 5))
    process.start()
    seen["process"] = queue.get() == Row(5)
    process.join()
    loader = DataLoader(
        Rows(),
        batch_size=4,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
        collate_fn=lambda rows: torch.tensor([row.n for row in rows]),
        worker_init_fn=lambda number: torch.manual_seed(number + offset),
    )
    for epoch in range(2):
        read = [batch.tolist() for batch in loader]
        seen[f"epoch {epoch}"] = read == [[0, 3, 6, 9], [12, 15, 18, 21]]
    return seen
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_what_a_notebook_defines_works_in_child_processes(method):
    exec(NOTEBOOK, notebook := {"__name__": "__main__"})
    seen = DistributedRunner(num_proc=-1).run(notebook["train"], method)
    assert len(seen) == 8
    assert [name for name, is_right in seen.items() if not is_right] == []
