"""What is saved and logged is the user's whole network, without what was wrapped around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from sparkdl_runner.base.unwrapping import unwrapped
from sparkdl_runner.checkpoint import CheckpointManager


class HasModule(nn.Module):
    """A network of two parts, one of which has the name that wrappers give to what they wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 3)
        self._orig_mod = nn.Linear(3, 1)


@pytest.fixture(autouse=True, scope="module")
def _the_compiler_has_set_itself_up() -> None:
    """What it imports when it wraps a network first sets an environment variable."""
    torch.compile(nn.Linear(1, 1), backend="eager")(torch.ones(1, 1))


@pytest.fixture
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_wrappers_are_taken_off_and_parts_of_the_network_are_not(alone_in_a_group: None) -> None:
    network = HasModule()
    assert unwrapped(network) is network
    # It would be compiled at its first call; the compiler of the default backend is slow to import.
    for wrapped in (
        nn.parallel.DistributedDataParallel(network),
        nn.DataParallel(network),
        torch.compile(network, backend="eager"),
        torch.compile(nn.parallel.DistributedDataParallel(network), backend="eager"),
    ):
        assert unwrapped(wrapped) is network
    assert unwrapped(None) is None


def test_what_holds_no_whole_network_is_refused(tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(model)
    with CheckpointManager(tmp_path) as checkpoints:
        for call in (checkpoints.restore, lambda *trained: checkpoints.save(1, *trained)):
            with pytest.raises(TypeError, match="Shard it by torch"):
                call(model, object())
