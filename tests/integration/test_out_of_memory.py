"""A rank that takes too much memory, killed by the real kernel in a real control group."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]
LIMIT_BYTES = 1400 << 20

_CODE = """
import os
os.write(os.open({procs!r}, os.O_WRONLY), str(os.getpid()).encode())
from sparkdl_runner import DistributedRunner, WorkerDiedError

def eat():
    import os
    import torch.distributed as dist
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        kept = []
        while True:
            kept.append(bytearray(os.urandom(1 << 20)) * 16)
    dist.barrier()

try:
    DistributedRunner(num_proc=-2, backend="torch").run(eat)
except WorkerDiedError as error:
    print("rank", error.rank)
    print(error)
"""


def _new_group() -> Path:
    """A control group below this process's own, of either version, with a limit."""
    from sparkdl_runner.rank.control_group import own_group

    own = own_group()
    if own is None:
        raise OSError("there is no memory control group")
    group = own / f"sparkdl-tests-{os.getpid()}"
    group.mkdir()
    try:
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (group / name).exists():
                (group / name).write_text(str(LIMIT_BYTES))
                return group
        raise OSError("the control group has no memory limit")
    except OSError:
        group.rmdir()
        raise


@pytest.fixture
def group() -> Iterator[Path]:
    try:
        group = _new_group()
    except OSError as error:
        pytest.skip(f"needs a memory control group of its own: {error}")
    yield group
    deadline = time.monotonic() + 120
    while True:
        try:
            return group.rmdir()
        except OSError:  # Its last process is not quite gone.
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_rank_that_the_kernel_killed_for_memory_is_told_as_that(group: Path) -> None:
    code = _CODE.format(procs=str(group / "cgroup.procs"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("rank 1\n"), done.stdout + done.stderr
    assert "was ended by SIGKILL. The kernel's out-of-memory killer ended it" in done.stdout
    assert f"{LIMIT_BYTES:,} bytes" in done.stdout
