"""What a rank may have for its data, and what a loader says where that is too little."""

from __future__ import annotations

import resource
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from parquet_sets import load, one

from one_module import replace_in
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.read import memory_plan
from sparkdl_runner.data.read.memory_plan import MemoryFacts, MemoryLimit
from sparkdl_runner.rank import control_group

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("facts", "rank_bytes"),
    [
        (MemoryFacts(host_bytes=64 * GIB), 64 * GIB),
        (MemoryFacts(host_bytes=64 * GIB, ranks=8), 8 * GIB),
        (MemoryFacts(host_bytes=64 * GIB, container_bytes=16 * GIB, ranks=4), 4 * GIB),
        # Version 1 of control groups says "no limit" by a number beyond the host's memory.
        (MemoryFacts(host_bytes=8 * GIB, container_bytes=1 << 62), 8 * GIB),
        (MemoryFacts(host_bytes=64 * GIB, process_bytes=2 * GIB, ranks=4), 2 * GIB),
        (MemoryFacts(host_bytes=4 * GIB, process_bytes=2 * GIB, ranks=4), 1 * GIB),
    ],
)
def test_what_a_rank_may_have(facts: MemoryFacts, rank_bytes: int) -> None:
    assert facts.rank_bytes == rank_bytes
    assert facts.data_bytes == rank_bytes // 4


def test_this_process_has_some() -> None:
    assert MemoryFacts.here().rank_bytes > 1 << 24


def test_the_limits_of_this_process_are_those_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soft = (3 * GIB, resource.RLIM_INFINITY)
    replace_in(monkeypatch, memory_plan, "resource", getrlimit=lambda which: soft)
    monkeypatch.setattr(control_group, "limit_bytes", lambda: 7 * GIB)
    facts = MemoryFacts.here()
    assert (facts.container_bytes, facts.process_bytes, facts.ranks) == (7 * GIB, 3 * GIB, 1)
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    replace_in(monkeypatch, memory_plan, "resource", getrlimit=lambda which: unlimited)
    assert MemoryFacts.here().process_bytes is None


def test_files_have_a_share_of_the_limit_and_remote_ones_more() -> None:
    limit = MemoryLimit(size_bytes=GIB, rank_bytes=8 * GIB, is_given=True)
    local, remote = limit.files_bytes(is_local=True), limit.files_bytes(is_local=False)
    assert GIB // 100 < local < remote < GIB // 4


def test_what_the_caller_gives_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, GIB)
    given, default = MemoryLimit.of(MIB), MemoryLimit.of(None)
    assert (given.size_bytes, given.is_given) == (MIB, True)
    assert (default.size_bytes, default.is_given) == (GIB // 4, False)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return one(tmp_path, pa.table({"id": np.arange(9_000)}), 100)


def with_memory(monkeypatch: pytest.MonkeyPatch, host_bytes: int) -> None:
    facts = MemoryFacts(host_bytes=host_bytes)
    monkeypatch.setattr(MemoryFacts, "here", classmethod(lambda cls: facts))


def test_the_order_is_the_same_on_a_smaller_machine(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []
    for host_bytes in (64 * GIB, GIB // 8):
        with_memory(monkeypatch, host_bytes)
        with load(tmp_path, manifest, batch_size=100) as loader:
            orders.append([batch["id"].tolist() for batch in loader])
            state = loader.state_dict()
    assert orders[0] == orders[1]
    with_memory(monkeypatch, 64 * GIB)
    with load(tmp_path, manifest, batch_size=100) as loader:
        loader.load_state_dict(state)


def test_too_little_memory_is_told_of_and_refused_with_both_figures(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 1 << 19)
    match = r"takes about 2\d\d,.* a quarter of .* is 131,072\. If .*, take fewer lanes than 4"
    with pytest.warns(UserWarning, match=match):
        load(tmp_path, manifest, batch_size=100).close()
    with_memory(monkeypatch, 1 << 17)
    match = r"may have 131,072 bytes of memory here, and .* takes about 2.* Take fewer lanes than 4"
    with pytest.raises(ValueError, match=match):
        load(tmp_path, manifest, batch_size=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, manifest, batch_size=100, memory_budget_bytes=1 << 20).close()
