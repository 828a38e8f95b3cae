"""Files of checkpoints that are in memory too, where the attempt before has left them."""

from __future__ import annotations

import os
from collections.abc import Mapping


class InMemory:
    """The paths of such files, and the descriptors of those that were read.

    Args:
        paths: By its SHA-256 each file's path, which is there as long as the process that holds it.
    """

    def __init__(self, paths: Mapping[str, str] | None = None) -> None:
        self.paths = paths or {}
        self.read: dict[str, int] = {}
        """By its SHA-256 the descriptor of each that was read, and is what was written."""

    def keep(self, sha256: str) -> None:
        """Keeps a file that was read, also when the other process is gone."""
        if sha256 not in self.read:
            self.read[sha256] = os.open(self.paths[sha256], os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Lets go of all of them."""
        while self.read:
            os.close(self.read.popitem()[1])
