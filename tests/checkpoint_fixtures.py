"""What all tests of checkpoints share, quick ones and slow ones."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _torch_has_set_itself_up() -> None:
    """The first optimizer imports a compiler, which sets an environment variable."""
    import torch

    torch.optim.Adam([torch.zeros(1, requires_grad=True)])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models of a few numbers are only slowed down by threads."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A directory where flushing costs nothing, if there is one."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(dir=memory))
    yield directory
    shutil.rmtree(directory)
