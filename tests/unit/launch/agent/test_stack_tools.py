"""What installed programs add to the stacks of a worker."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

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


def asked():
    return stack_tools.ask(4321, of_all_hosts=True)


def test_where_none_is_installed_nothing_is_added(installed):
    assert asked() == ""


def test_ncclras_is_asked_once_for_all_hosts(installed):
    installed("ncclras", "print('Communicators... (0.00s)\\n\\n1 of 8 ranks is missing')")
    assert asked() == "Communicators... (0.00s)\n\n1 of 8 ranks is missing\n\n"
    assert stack_tools.ask(4321, of_all_hosts=False) == ""


def test_pystack_is_asked_for_the_native_frames_of_the_worker(installed, monkeypatch):
    python = installed("python", "print(*sys.argv[1:])")
    stack_tools.importlib.util.find_spec = lambda name: name == "pystack"
    monkeypatch.setattr(stack_tools, "sys", SimpleNamespace(executable=str(python)))
    assert asked() == "-P -m pystack remote --native 4321\n\n"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("sys.stderr.write('no such service'); sys.exit(1)", "no such service"),
        ("print('x' * 1_000_000)", "x" * stack_tools.MOST_CHARACTERS),
        ("sys.stdout.buffer.write(bytes([255]))", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_whatever_a_program_prints_is_told_and_cut_to_size(installed, source, told):
    installed("ncclras", source)
    assert asked() == f"{told}\n\n"


def test_a_program_that_does_not_answer_is_ended(installed, monkeypatch):
    monkeypatch.setattr(stack_tools, "MOST_SECONDS", 0.2)
    path = installed("ncclras", "time.sleep(600)")
    assert asked() == f"(Command '['{path}']' timed out after 0.2 seconds)\n\n"


def test_a_program_that_cannot_be_started_is_told_of(installed):
    installed("ncclras", "").write_text("#!/nowhere\n")
    assert "No such file or directory" in asked()
