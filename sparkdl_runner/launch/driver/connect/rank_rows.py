"""A rank's task as Spark Connect runs it: its outcome travels as rows."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sparkdl_runner.launch.agent.rank_task import RankTask
from sparkdl_runner.launch.wire.outcome import Outcome

SCHEMA = "rank int, chunk binary"


@dataclass(frozen=True)
class RankRows:
    """Runs ranks in a task of ``mapInArrow``, and yields their outcomes in chunks.

    Attributes:
        task: The ranks'.
        chunk_bytes: Of each row at most. Smaller ones are slower to carry, and one of 2 GiB is
            not possible.
    """

    task: RankTask
    chunk_bytes: int = 4 << 20

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Spark calls this, in a stage of the tasks of all ranks."""
        import pyarrow as pa

        for _ in batches:  # Spark drops a Python process that has not read all of its input.
            pass
        for outcome in self.task(()):
            packed = pickle.dumps(outcome)
            for at in range(0, len(packed), self.chunk_bytes):
                rank = pa.array([outcome.world.rank], pa.int32())
                chunk = pa.array([packed[at : at + self.chunk_bytes]], pa.binary())
                yield pa.RecordBatch.from_arrays([rank, chunk], ["rank", "chunk"])


def outcomes_of(rows: Sequence[Any]) -> list[Outcome]:
    """Puts the chunks together; the rows of a rank stand together, in their order."""
    packed = [b"".join(row.chunk for row in own) for _, own in groupby(rows, lambda row: row.rank)]
    # From Spark's task results, as those of a classic session.
    return [pickle.loads(one) for one in packed]  # noqa: S301
