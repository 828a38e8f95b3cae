"""Asks installed programs about a worker that hangs: pystack and ncclras."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys

# Its end is kept: the main thread is there, and the stacks that follow must be shown, too.
MOST_SECONDS, MOST_CHARACTERS = 2.0, 4096


def ask(pid: int, *, of_all_hosts: bool) -> str:
    """The output of pystack for the process, and of ncclras (NCCL 2.24) for all ranks."""
    commands = []
    if importlib.util.find_spec("pystack"):
        commands.append([sys.executable, "-P", "-m", "pystack", "remote", "--native", str(pid)])
    if of_all_hosts and (path := shutil.which("ncclras")):
        commands.append([path])
    return "".join(f"{answer}\n\n" for answer in map(_answer, commands) if answer)


def _answer(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        return f"{(error.stdout or b'').decode(errors='replace')[:MOST_CHARACTERS]}({error})"
    except OSError as error:
        return f"({error})"
    return (done.stdout + done.stderr).decode(errors="replace").strip()[-MOST_CHARACTERS:]
