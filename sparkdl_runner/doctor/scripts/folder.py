"""Keeps a small file in a folder until its input ends, as a rank would write it.

Its one line of output says whether that works, and whether another file is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

CONTENT = b"sparkdl_runner\n"


class LocalFolder:
    """A directory, for which no library is needed."""

    def __init__(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        self.path = path

    def write(self, name: str) -> None:
        """Writes a file, down to the disk."""
        with open(os.path.join(self.path, name), "xb") as stream:
            stream.write(CONTENT)
            stream.flush()
            os.fsync(stream.fileno())

    def holds(self, name: str) -> bool:
        """Whether a file is there."""
        return os.path.exists(os.path.join(self.path, name))

    def remove(self, name: str) -> None:
        """Removes a file."""
        os.remove(os.path.join(self.path, name))


class RemoteFolder:
    """A folder on storage that ranks reach through this package."""

    def __init__(self, url: str) -> None:
        from sparkdl_runner.base.filesystem import open_filesystem

        self.filesystem, self.path = open_filesystem(url)
        self.filesystem.create_dir(self.path, recursive=True)

    def write(self, name: str) -> None:
        """Writes a file."""
        with self.filesystem.open_output_stream(f"{self.path}/{name}") as stream:
            stream.write(CONTENT)

    def holds(self, name: str) -> bool:
        """Whether a file is there."""
        return bool(self.filesystem.get_file_info(f"{self.path}/{name}").is_file)

    def remove(self, name: str) -> None:
        """Removes a file."""
        self.filesystem.delete_file(f"{self.path}/{name}")


def main() -> None:
    """Writes, looks, tells, waits and removes."""
    # When the whole group is ended, this process removes its file first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    request, answer = json.loads(sys.argv[1]), {}
    folder: Any = None
    try:
        from sparkdl_runner.base.filesystem import local_path

        url = request["url"]
        path = url if url.startswith("/") else local_path(url)
        folder = RemoteFolder(url) if path is None else LocalFolder(path)
        folder.write(request["name"])
        if request["look_for"]:
            answer["seen"] = folder.holds(request["look_for"])
    except BaseException as error:
        reason = error.strerror if isinstance(error, OSError) else None
        answer["error"] = f"{type(error).__name__}: {reason or error}"[:600]
    print(json.dumps(answer), flush=True)
    sys.stdin.read()
    if folder is not None:
        with contextlib.suppress(Exception):
            folder.remove(request["name"])


main()
