"""Runs functions of the tests as another user, who may read all files and change only their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any


def run_as(
    user: int, function: Callable[..., Any], folder: Path, *more: Any, fds: Collection[int] = ()
) -> str:
    """Calls a function of a test module in a process of its own, as another user.

    That user has no home, and one right of root's: to read all files, since Python may lie in a
    folder of root's.

    Args:
        user: The user's number.
        function: Of the top of a module.
        folder: Its first argument, which becomes the user's, and its temporary folder.
        more: Further arguments, as ``repr`` writes them.
        fds: Open files that it needs.

    Returns:
        Its output. The last line is the function's value.
    """
    os.chown(folder, user, user)
    right = "-all,+dac_read_search"
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    rights = [f"--inh-caps={right}", f"--ambient-caps={right}"]
    values = ", ".join([f"t.Path({str(folder)!r})", *map(repr, more)])
    code = f"import {function.__module__} as t; print(t.{function.__name__}({values}))"
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("HOME", None)
    done = subprocess.run(
        ["setpriv", *ids, *rights, sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        pass_fds=fds,
        text=True,
        check=True,
    )
    return done.stdout
