"""The files of a run, kept on the driver until they go to MLflow."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.base.foreign_name import is_relative
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.report.run_summary import AttemptRow

_KINDS = ("logs", "traces", "figures")
# MLflow's page shows no larger text, and what has grown is uploaded as a whole.
MAX_CHUNK_BYTES = 4 << 20


class RunFolder:
    """A folder for logs, traces, figures, attempts and the report.

    Args:
        path: Where an earlier driver has made it; None for a new one.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.mkdtemp(prefix="sparkdl_runner-run-"))
        self._chunks: dict[tuple[int, str], tuple[int, int]] = {}
        """By attempt and rank, the number and the size of its log's newest chunk."""

    def keep_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """Appends a part of a file that a rank sends; a first part begins the file anew.

        A rank's log becomes chunks of at most 4 MiB: ``logs/rank_K/attempt-N-00.chunk.txt``.
        A file of another kind, or one that would be outside of the folder, is ignored.

        Raises:
            OSError: It cannot be written.
        """
        kind, _, rest = name.partition("/")
        if kind not in _KINDS or not is_relative(rest):
            return
        path = self.path / kind / f"attempt-{world.attempt}" / rest
        if kind == "logs":
            number, size = (0, 0) if is_first else self._chunks.get((world.attempt, rest), (0, 0))
            if size + len(data) > MAX_CHUNK_BYTES:
                number, size = number + 1, 0
            self._chunks[world.attempt, rest] = number, size + len(data)
            path = self.path / kind / rest / f"attempt-{world.attempt}-{number:02}.chunk.txt"
            is_first = not size
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb" if is_first else "ab") as file:
            file.write(data)

    def keep_attempt(self, attempt: AttemptRow) -> None:
        """Writes what is known of an attempt, unless the disk is full."""
        path = self.path / "attempts" / f"attempt-{attempt.number}.txt"
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(attempt.text())

    def keep_value(self, file: Path) -> str:
        """Copies the file of a value that a rank returned; returns its place among the artifacts.

        Raises:
            OSError: There is no room for it.
        """
        kept = self.path / "returned" / file.name
        kept.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, kept)
        return f"returned/{file.name}"

    def remove(self) -> None:
        """Removes all of it."""
        shutil.rmtree(self.path, ignore_errors=True)
