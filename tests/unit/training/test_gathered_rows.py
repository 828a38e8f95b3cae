"""Rows of all ranks, which may have different numbers of them: ranks are threads here."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from sparkdl_runner.training.loop.ranks import Ranks, connect


class ThreadRanks(Ranks):
    """A rank that meets the others of its list."""

    def __init__(self, rank: int, meeting: threading.Barrier, table: list[Tensor]) -> None:
        super().__init__()
        self.rank, self.size = rank, len(table)
        self._meeting, self._table = meeting, table

    def _gather_alike(self, values: Tensor) -> list[Tensor]:
        self._table[self.rank] = values
        self._meeting.wait(120)
        found = list(self._table)
        self._meeting.wait(120)
        assert {(one.shape, one.dtype) for one in found} == {(values.shape, values.dtype)}
        return found


def gathered(each: list[Tensor]) -> list[list[Tensor]]:
    """What each rank gets."""
    size = len(each)
    meeting, table = threading.Barrier(size), [torch.empty(0)] * size
    with ThreadPoolExecutor(size) as pool:
        return list(
            pool.map(lambda rank: ThreadRanks(rank, meeting, table).gather(each[rank]), range(size))
        )


@pytest.mark.parametrize(
    "each",
    [
        [torch.arange(6).reshape(3, 2), torch.arange(2).reshape(1, 2)],
        [torch.ones(1, 2, 3), torch.zeros(0, 2, 3), torch.full((4, 2, 3), 2.0)],
        [torch.tensor(3.5), torch.tensor(4.5)],
        [torch.tensor([True, False]), torch.tensor([True])],
        [torch.zeros(0, 2), torch.zeros(0, 2)],
    ],
)
def test_each_rank_gets_the_rows_of_all_in_their_order(each: list[Tensor]) -> None:
    for found in gathered(each):
        assert [one.shape for one in found] == [one.shape for one in each]
        assert [one.dtype for one in found] == [one.dtype for one in each]
        assert all(map(torch.equal, found, each))


def test_a_rank_without_rows_need_not_know_what_others_have() -> None:
    ids = torch.tensor([[5, 6]], dtype=torch.int64)
    for found in gathered([torch.empty(0), ids]):
        assert found[0].shape == (0, 2)
        assert found[0].dtype == torch.int64
        assert torch.equal(found[1], ids)


def test_a_process_that_trains_alone_is_all_ranks() -> None:
    ranks = connect("ddp")
    assert (type(ranks), ranks.rank, ranks.size) == (Ranks, 0, 1)
    model = nn.BatchNorm1d(2)
    network, optimizer = ranks.prepare(model, lambda it: torch.optim.SGD(it, lr=1.0), 1)
    assert network is model
    model(torch.randn(4, 2)).sum().backward()
    ranks.step(optimizer, model, None)
    kept = ranks.weights(model)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 1
    assert torch.equal(kept["weight"], before), "a copy"
    ranks.load_weights(model, kept)
    assert torch.equal(model.weight, before)
    assert torch.equal(ranks.sum(torch.tensor([2.0])), torch.tensor([2.0]))
    assert [one.tolist() for one in ranks.gather(torch.ones(2, 1))] == [[[1.0], [1.0]]]
