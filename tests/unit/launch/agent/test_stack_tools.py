"""What installed programs add to the stacks of a worker."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from sparkdl_runner.base import processes
from sparkdl_runner.launch.agent import stack_tools


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Puts a program of this name on the PATH, where no other is; and there is no pystack."""
    monkeypatch.setenv("PATH", str(tmp_path))
    find_spec = SimpleNamespace(find_spec=lambda name: None)
    monkeypatch.setattr(stack_tools, "importlib", SimpleNamespace(util=find_spec))

    def put(name, source):
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\nimport sys, time\n{source}\n")
        path.chmod(0o700)
        return path

    return put


def nccl_report():
    return stack_tools.nccl_report({"MARK": "of the worker"}, lambda: False)


def native_frames():
    return stack_tools.native_frames(4321, {}, lambda: False)


def test_where_none_is_installed_nothing_is_added(installed):
    assert (native_frames(), nccl_report()) == ("", "")


def test_ncclras_is_asked_for_the_report_of_all_ranks(installed):
    installed("ncclras", "print('Communicators... (0.00s)\\n\\n1 of 8 ranks is missing')")
    assert nccl_report() == "Communicators... (0.00s)\n\n1 of 8 ranks is missing"


def test_pystack_is_asked_for_the_native_frames_of_the_worker(installed, monkeypatch):
    python = installed("python", "print(*sys.argv[1:])")
    stack_tools.importlib.util.find_spec = lambda name: name == "pystack"
    monkeypatch.setattr(stack_tools, "sys", SimpleNamespace(executable=str(python)))
    assert native_frames() == "-P -m pystack remote --native 4321"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("sys.stderr.write('no such service'); sys.exit(1)", "no such service"),
        ("print('x' * 1_000_000 + 'the end', end='')", "x" * 4089 + "the end"),
        ("sys.stdout.buffer.write(bytes([255]))", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_whatever_a_program_prints_is_told_and_cut_to_size(installed, source, told):
    installed("ncclras", source)
    assert nccl_report() == told


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(
    installed, monkeypatch, tmp_path
):
    monkeypatch.setattr(stack_tools, "NCCL_SECONDS", 0.5)
    source = f"""import pathlib, subprocess
child = subprocess.Popen(["/bin/sleep", "600"])
pathlib.Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
print("NCCL 2.27", flush=True)
time.sleep(600)"""
    installed("ncclras", source)
    told = nccl_report()
    assert told == "NCCL 2.27\n(ncclras had not ended after 0.5 s, and was killed)"
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 60
    while (stat := processes.stat(child)) is not None and not stat.has_ended:
        assert time.monotonic() < deadline  # A signal that was sent may take a moment.
        time.sleep(0.01)


def test_nobody_waits_for_a_program_once_the_worker_has_ended(installed):
    installed("ncclras", "print('NCCL 2.27', flush=True)\ntime.sleep(600)")
    ends = iter([False, True])
    assert stack_tools.nccl_report({}, lambda: next(ends)) in ("", "NCCL 2.27")


def test_who_ends_the_worker_finds_its_programs_by_its_mark(installed):
    installed("ncclras", "import os\nprint(os.environ['MARK'])")
    assert nccl_report() == "of the worker"


def test_a_program_that_cannot_be_started_is_told_of(installed):
    installed("ncclras", "").write_text("#!/nowhere\n")
    assert "No such file or directory" in nccl_report()
