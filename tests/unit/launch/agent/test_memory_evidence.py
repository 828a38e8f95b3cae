from __future__ import annotations

import pytest

from sparkdl_runner.launch.agent import memory_evidence
from sparkdl_runner.launch.agent.memory_evidence import MemoryEvidence
from sparkdl_runner.rank import control_group


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A control group of version 2, and a kernel that has killed nobody on this host."""
    process = tmp_path / "process"
    process.write_text("0::/\n")
    monkeypatch.setattr(control_group, "_PROCESS", process)
    monkeypatch.setattr(control_group, "_ROOT", tmp_path)
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (tmp_path / "memory.max").write_text("1073741824\n")
    return tmp_path


def test_a_kill_in_the_container_is_told_with_its_limit(group):
    evidence = MemoryEvidence()
    assert evidence.verdict() is None
    (group / "memory.events").write_text("low 0\noom 4\noom_kill 3\n")
    told = evidence.verdict()
    assert told is not None
    assert "its container (cgroup, 1,073,741,824 bytes) was reached" in told
    assert "spark.executor.memoryOverhead" in told
    assert control_group.limit_bytes() == 1 << 30


def test_a_kill_of_long_ago_explains_nothing(group):
    evidence = MemoryEvidence()
    (group / "memory.events").write_text("oom_kill 3\n")
    for _ in range(5):
        evidence.look()
    assert evidence.verdict() is None


@pytest.mark.parametrize("no_limit", ["max", "9223372036854771712"])
def test_where_no_container_has_a_limit_the_host_ran_out_of_memory(group, no_limit):
    (group / "memory.max").write_text(f"{no_limit}\n")
    evidence = MemoryEvidence()
    (group / "memory.events").write_text("oom_kill 3\n")
    assert "the host ran out of memory" in str(evidence.verdict())
    assert control_group.limit_bytes() is None


def test_version_1_counts_in_another_file(group):
    (group / "memory.events").unlink()
    control = group / "memory.oom_control"
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    evidence = MemoryEvidence()
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert evidence.verdict() is not None


def test_no_control_group_is_no_evidence(monkeypatch):
    monkeypatch.setattr(control_group, "own_group", lambda: None)
    monkeypatch.setattr(memory_evidence, "_oom_kills", lambda path: None)
    assert MemoryEvidence().verdict() is None


@pytest.mark.parametrize(
    ("root_limit", "outer_limit", "own_limit", "expected"),
    [("max", "max", "max", None), ("max", "3", "max", 3), ("max", "2", "5", 2), ("1", "2", "5", 1)],
)
def test_the_limits_of_the_groups_around_ours_count_as_well(
    group, root_limit, outer_limit, own_limit, expected
):
    own = group / "pod" / "rank"
    own.mkdir(parents=True)
    (group / "process").write_text("0::/pod/rank\n")
    limits = (root_limit, outer_limit, own_limit)
    for folder, limit in zip((group, group / "pod", own), limits, strict=True):
        (folder / "memory.events").write_text("oom_kill 0\n")
        (folder / "memory.max").write_text(f"{limit}\n")
    assert control_group.own_group() == own
    assert control_group.limit_bytes() == expected


def test_a_path_of_the_host_that_a_container_does_not_see_leads_to_its_root(group):
    (group / "process").write_text("4:memory:/kubepods/pod-1\n")
    (group / "memory").mkdir()
    (group / "memory" / "memory.oom_control").write_text("oom_kill 0\n")
    (group / "memory" / "memory.limit_in_bytes").write_text("7\n")
    assert control_group.own_group() == group / "memory"
    assert control_group.limit_bytes() == 7
