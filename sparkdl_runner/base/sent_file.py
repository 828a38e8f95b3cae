"""A file that a Spark Connect session has sent to its workers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SentFile:
    """Bytes that wait on each host as a file, as a broadcast's do in a classic session.

    The key comes with the plan itself: no other session's file is taken for this one.
    """

    key: str
    """See ``key_of``."""

    @property
    def name(self) -> str:
        """The file's name."""
        return f"sparkdl_runner-{self.key}"

    @property
    def value(self) -> bytes:
        """Its content, in a worker.

        Raises:
            RuntimeError: The file holds something else.
        """
        from pyspark import SparkFiles

        content = Path(SparkFiles.get(self.name)).read_bytes()
        if key_of(content) != self.key:
            raise RuntimeError(
                f"The file {self.name} of this Spark session is not what was sent: another "
                "program has changed it. Make a new session."
            )
        return content


def key_of(content: bytes) -> str:
    """The key by which Python workers recognise what was sent."""
    return hashlib.sha256(content).hexdigest()
