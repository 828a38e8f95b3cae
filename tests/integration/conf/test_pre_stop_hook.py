"""The executors' preStop hook, run: it tells the ranks, and waits until they have saved."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

# The hook goes by names: only in a PID namespace of its own can it reach nobody else's processes.
ISOLATED = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
POD = Path(__file__).parents[3] / "conf" / "kubernetes" / "executor-pod.yaml"


def why_not() -> str | None:
    """Why this machine cannot isolate processes, or None if it can."""
    try:
        subprocess.run([*ISOLATED, "pgrep", "-f", "pgrep"], check=False, capture_output=True)
        subprocess.run([*ISOLATED, "true"], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        return f"there is no {error.filename} (Debian: apt-get install util-linux procps)"
    except subprocess.CalledProcessError as error:
        return f"this machine forbids PID namespaces: {error.stderr.strip()}"
    return None


REASON = why_not()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(REASON is not None, reason=f"needs PID namespaces: {REASON}"),
]

# In place of an executor: a rank that takes a moment to save, the guard that ignores the signal and
# ends with its rank, and a process that is none of the ranks.
EXECUTOR = """
bash -c 'trap "sleep 1; echo saved; exit" TERM; echo began; : >rank; while :; do sleep 0.1; done' \
    python -m sparkdl_runner.launch.worker &
rank=$!
bash -c 'trap "" TERM; : >guard; while kill -0 $3; do sleep 0.1; done 2>/dev/null
    echo the guard ended' python -m sparkdl_runner.launch.worker $rank &
bash -c 'trap "echo told by mistake" TERM; : >executor; while :; do sleep 0.1; done' executor &
other=$!
until [ -e rank ] && [ -e guard ] && [ -e executor ]; do sleep 0.1; done
{hook}
echo the hook ended with $?
kill -0 $other && echo the executor is there
"""


def run(executor: str, folder: Path) -> list[str]:
    done = subprocess.run(
        # By way of its input: its command line must not hold the name that the hook looks for.
        [*ISOLATED, "bash", "-s"],
        input=executor.replace("{hook}", f"{hook()} </dev/null"),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


def hook() -> str:
    (container,) = yaml.safe_load(POD.read_text())["spec"]["containers"]
    return shlex.join(container["lifecycle"]["preStop"]["exec"]["command"])


def test_ranks_save_before_the_hook_lets_the_executor_be_stopped(tmp_path):
    assert run(EXECUTOR, tmp_path) == [
        "began",
        "saved",
        "the guard ended",
        "the hook ended with 0",
        "the executor is there",
    ]


def test_without_ranks_the_hook_ends_at_once(tmp_path):
    nothing = EXECUTOR[EXECUTOR.index("{hook}") :].replace("$other", "$$")
    assert run(nothing, tmp_path) == ["the hook ended with 0", "the executor is there"]
