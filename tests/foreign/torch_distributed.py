"""torch's own ``distributed_test.py``, over gloo: collectives, groups, DDP and what builds on it.

torch starts the processes of these tests itself; here the ranks are there, and meet once. Left out
is what needs a GPU, another backend, or ends its own process.
"""

from __future__ import annotations

import functools
import os
import re
import unittest
from collections.abc import Callable
from typing import Any

from foreign.ranks import FOLDER

os.environ.setdefault("BACKEND", "gloo")
os.environ["TEMP_DIR"] = os.environ[FOLDER]

import torch.distributed as dist
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed.distributed_test import DistributedTest

LEFT_OUT = re.compile(r"cuda|nccl|gpu|timeout|profiler|monitored|SyncBatchNorm|complex_unsupported")
_Base = DistributedTest._DistTestBase


class TestRanks(_Base, TestCase):  # type: ignore[misc]
    """The chosen tests, in ranks that are there already."""

    @classmethod
    def setUpClass(cls) -> None:
        """Meets the other ranks."""
        super().setUpClass()
        # Where one of the tests leaves a file for each rank.
        os.makedirs(os.path.join(os.environ["TEMP_DIR"], "test_dir"), exist_ok=True)
        dist.init_process_group("gloo")

    @classmethod
    def tearDownClass(cls) -> None:
        """Leaves them."""
        dist.destroy_process_group()
        super().tearDownClass()

    @property
    def rank(self) -> int:
        """As torch's own base class has it."""
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        """The same."""
        return dist.get_world_size()

    def _barrier(self, *args: Any, **kwargs: Any) -> None:
        dist.barrier()


def _skips(test: Callable[[Any], None]) -> Callable[[Any], None]:
    """Makes a skip of the exit by which torch's tests end a process that lacks something."""

    @functools.wraps(test)
    def run(self: Any) -> None:
        try:
            test(self)
        except SystemExit as stop:
            raise unittest.SkipTest(f"exit code {stop.code}") from None

    return run


for _name in [name for name in dir(_Base) if name.startswith("test_")]:
    setattr(TestRanks, _name, None if LEFT_OUT.search(_name) else _skips(getattr(_Base, _name)))
