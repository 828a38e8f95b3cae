"""Sends files to a Spark Connect session: piece by piece, and past the heaps of its JVMs.

In a plan, 20 MB cost each call four seconds, and 60 MB end a server of default size. The server
keeps them until the session ends.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sparkdl_runner.base.sent_file import SentFile, key_of


def send_file(session: Any, content: bytes) -> SentFile:
    """Makes bytes known to the session's workers.

    Args:
        session: The Spark Connect session.
        content: The bytes.

    Returns:
        The file's name and key. In a worker its ``value`` is the bytes.
    """
    sent = SentFile(key_of(content))
    send_as(session, sent.name, content, file=True)
    return sent


def send_as(session: Any, name: str, content: bytes, **kind: bool) -> None:
    """Sends a file under a name: a server refuses another content under a name that it knows.

    Args:
        session: The Spark Connect session.
        name: The file's name.
        content: What it holds.
        **kind: What ``addArtifacts`` takes it for: ``file`` or ``pyfile``.
    """
    with tempfile.TemporaryDirectory(prefix="sparkdl-sent-") as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        session.addArtifacts(str(path), **kind)
