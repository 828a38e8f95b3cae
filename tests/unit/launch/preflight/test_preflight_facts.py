"""What a preflight reads of a host, and who meets whom."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from sparkdl_runner.launch.preflight import host_facts
from sparkdl_runner.launch.preflight.group import partner
from sparkdl_runner.rank import control_group

XID = "[1.0] NVRM: Xid (PCI:0000:3b:00): {}, pid=7, name=python, GPU has fallen off the bus.\n"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Makes an nvidia-smi of a script."""

    def make(script: str) -> None:
        for name, text in (("nvidia-smi", script), ("dmesg", f"echo '{XID.format(79)}'")):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def test_gpus_without_faults():
    assert host_facts.gpu_faults("0, 0, No, 0x0000000000000004\n1, [N/A], [N/A], [N/A]\n", "") == []
    assert host_facts.gpu_faults("no devices were found\n", XID.format(31)) == []


def test_faults_of_gpus():
    output = "0, 3, No, 0x0\n1, 0, Yes, 0x0\n2, 0, No, 0x0000000000000040\n"
    assert host_facts.gpu_faults(output, XID.format(79) + XID.format(13)) == [
        "GPU 0 has 3 uncorrected ECC errors",
        "GPU 1 has pages of memory to retire",
        "GPU 2 is throttled (reasons 0x0000000000000040)",
        "Xid 79 since it started",
    ]


def test_the_tools_are_asked(tool):
    tool("echo '0, 2, No, 0x0'")
    expected = ["GPU 0 has 2 uncorrected ECC errors", "Xid 79 since it started"]
    assert host_facts.GpuHealth().faults() == expected


def test_a_tool_that_hangs_is_told_and_killed(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(host_facts, "_GPU_SECONDS", 0.3)
    tool(f"echo $$ > {tmp_path}/pid; exec sleep 600")
    assert host_facts.GpuHealth().faults() == ["nvidia-smi does not answer within 0.3 s"]
    pid = int((tmp_path / "pid").read_text())
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    assert not Path(f"/proc/{pid}").exists()


def test_a_disk_is_measured_where_spark_keeps_files(tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_DIRS", raising=False)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    rates, faults = host_facts.disk(0.01)
    assert faults == []
    assert set(rates) == {"writing to the disk", "reading the disk"}
    assert min(rates.values()) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_DIRS", str(tmp_path / "missing"))
    rates, (fault,) = host_facts.disk(0.01)
    assert rates == {}
    assert fault.startswith("no file can be written for a cache (")
    assert "missing" in fault


@pytest.mark.parametrize("number", range(1, 12))
def test_each_host_meets_each_other_once(number):
    met = set()
    for turn in range(number - 1 + number % 2):
        partners = [partner(host, turn, number) for host in range(number)]
        for host, other in enumerate(partners):
            if other is not None:
                assert partners[other] == host != other
                met.add((host, other))
    assert met == {(a, b) for a in range(number) for b in range(number) if a != b}


@pytest.mark.parametrize("version", [1, 2])
def test_the_processors_of_a_control_group(version, tmp_path, monkeypatch):
    own = tmp_path / ("pod/rank" if version == 2 else "cpu/pod/rank")
    own.mkdir(parents=True)
    line = "0::/pod/rank" if version == 2 else "5:cpu,cpuacct:/pod/rank"
    (tmp_path / "self").write_text(f"7:pids:/\n{line}\n")
    if version == 2:
        (own / "cpu.max").write_text("max 100000\n")
        (own.parent / "cpu.max").write_text("150000 100000\n")
        (own.parent / "cpu.stat").write_text("nr_throttled 3\nthrottled_usec 2500000\n")
    else:
        (own / "cpu.cfs_quota_us").write_text("150000\n")
        (own / "cpu.cfs_period_us").write_text("100000\n")
        (own.parent / "cpu.cfs_quota_us").write_text("-1\n")
        (own / "cpu.stat").write_text("nr_throttled 3\nthrottled_time 2500000000\n")
    monkeypatch.setattr(control_group, "_PROCESS", tmp_path / "self")
    monkeypatch.setattr(control_group, "_ROOT", tmp_path)
    assert control_group.cpu_limit() == 1.5
    assert control_group.throttled_seconds() == 2.5


def test_without_control_groups_there_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(control_group, "_PROCESS", tmp_path / "none")
    assert control_group.cpu_limit() is None
    assert control_group.throttled_seconds() == 0.0
