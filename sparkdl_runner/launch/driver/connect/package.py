"""This package as a zip file, for executors that lack it."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import struct
import zipfile
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.connect.sent_file import send_as

PACKAGE = "sparkdl_runner"
# The same content gives the same file.
_DATE = (1980, 1, 1, 0, 0, 0)


def send(session: Any) -> None:
    """Makes this package importable in the session's tasks and in their child processes.

    Args:
        session: The Spark Connect session.

    Raises:
        LaunchError: The server takes no files.
    """
    content = _zipped()
    name = f"{PACKAGE}-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    try:
        send_as(session, name, content, pyfile=True)
    except Exception as error:
        raise LaunchError(
            f"The executors lack {PACKAGE}, and the server does not take it from here "
            f"({error}): install it on every host of the cluster."
        ) from error


@cache  # It takes some seconds, and each session needs it.
def _zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        _add(archive, files(PACKAGE), PACKAGE)
    return packed.getvalue()


def _add(archive: zipfile.ZipFile, folder: Traversable, name: str) -> None:
    for one in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if one.is_dir() and one.name != "__pycache__":
            _add(archive, one, f"{name}/{one.name}")
        elif one.is_file():
            entry = f"{name}/{one.name}"
            content = one.read_bytes()
            _write(archive, entry, content)
            if entry.endswith(".py"):
                _write(archive, f"{entry}c", _compiled(content, entry))


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)


def _compiled(source: bytes, name: str) -> bytes:
    """As Python would keep it: it keeps nothing of a zip file, and would compile at each start."""
    code = compile(source, name, "exec", dont_inherit=True)
    # By flag 1 alone the file is never compared with the source, which has another date there.
    header = importlib.util.MAGIC_NUMBER + struct.pack("<I", 1) + importlib.util.source_hash(source)
    return header + marshal.dumps(code)
