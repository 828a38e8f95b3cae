"""Values of ranks whose functions have returned, as far as they come by the channel.

Plain ones come ahead of the Spark tasks that carry them. A rank's task ends with its process. If an
executor is lost before that, Spark fails the stage and drops the values of all ranks.

Those that are too large for Spark come in parts, into files. They are pickles, and so nobody reads
one before Spark has carried its SHA-256: the channel alone is not trusted with that.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from sparkdl_runner.errors import NotPicklableError, RunnerError
from sparkdl_runner.launch.agent.large_value import keep_value, new_value_file, where
from sparkdl_runner.launch.agent.rank_log import remove_file_of_run
from sparkdl_runner.launch.wire.function import pack_plain_result, unpack_result
from sparkdl_runner.launch.wire.messages import ValueSent
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import World


class ReturnedValues:
    """The values that ranks have sent so far.

    Args:
        run: The run's own name.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._packed: dict[World, bytes] = {}
        self._files: dict[World, _ValueFile] = {}

    def take(self, world: World, text: str) -> None:
        """Keeps a rank's value, if the text is one of ``function.plain_result``."""
        with suppress(ValueError, RecursionError):
            self._packed[world] = pack_plain_result(text, world)

    def outcomes(self, num_proc: int, loss: str) -> list[Outcome]:
        """How all ranks ended, where each has returned and its value is here; else empty.

        Args:
            num_proc: How many ranks there are.
            loss: What was lost, for the driver to tell.
        """
        if len(self._packed) < num_proc:
            return []
        note = f"all functions had returned before a task was lost, so their values count: {loss}"
        return [
            Outcome(
                world=world,
                status=Status.RETURNED,
                ended_at=time.time(),
                notes=() if world.rank else (note,),
                payload=self._packed[world],
            )
            for world in sorted(self._packed, key=lambda world: world.rank)
        ]

    def take_part(self, world: World, data: bytes, *, is_first: bool) -> None:
        """Appends a part of a rank's pickled value to its file."""
        if is_first:
            self._files[world] = _ValueFile(self._run, world)
        if world in self._files:
            self._files[world].append(data)

    def problem(self, world: World, sent: ValueSent) -> str | None:
        """Why a rank's value is not kept, empty if it is; None if parts are still to come."""
        file = self._files.get(world)
        return None if file is None else file.compare(sent)

    def with_files(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes, those with a value in a file with its path.

        The files are the caller's if all ranks have returned.
        """
        if any(outcome.status != Status.RETURNED for outcome in outcomes):
            return list(outcomes)
        return [replace(outcome, value_file=self._take_file(outcome)) for outcome in outcomes]

    def _take_file(self, outcome: Outcome) -> str:
        file = self._files.get(outcome.world)
        if file is None or not outcome.value_sha256 or file.sha256 != outcome.value_sha256:
            return ""
        del self._files[outcome.world]
        return str(file.path)

    def close(self) -> None:
        """Removes the files that nobody has taken."""
        while self._files:
            self._files.popitem()[1].remove()


def value_of(outcome: Outcome, run: str) -> Any:
    """Unpickles the value of a rank that has returned.

    Args:
        outcome: The rank's, with the file of its value where it has one.
        run: The run's own name.

    Raises:
        NotPicklableError: The driver lacks what the value is made of. It says where the value is
            kept.
        RunnerError: It has not come whole.
    """
    path = Path(outcome.value_file) if outcome.value_file else None
    if outcome.value_sha256 and path is None:
        raise RunnerError(
            f"The value of rank {outcome.world.rank} did not come as it was sent: its SHA-256 is "
            "another one than Spark has carried."
        )
    try:
        if path is None:
            return unpack_result(outcome.payload)
        with path.open("rb") as file:
            value = unpack_result(file)
    except NotPicklableError as error:
        kept = path or keep_value(outcome.payload, run, outcome.world)
        sentence = where(kept, socket.gethostname())
        refused = NotPicklableError(f"{error} {sentence}")
        refused.kept = kept if isinstance(kept, Path) else None
        raise refused from error.__cause__
    remove_file_of_run(path)
    return value


class _ValueFile:
    """The file of a value that is on its way; made without raising, as a sink must not."""

    def __init__(self, run: str, world: World) -> None:
        self.path = Path()
        self._digest = hashlib.sha256()
        self._size = 0
        self._file: BinaryIO | None = None
        self._problem = ""
        self._attempt(lambda: self._open(run, world))

    @property
    def sha256(self) -> str:
        """The digest of what has come; empty if it is not kept."""
        return "" if self._problem else self._digest.hexdigest()

    def append(self, data: bytes) -> None:
        """Writes a part."""
        self._size += len(data)
        self._digest.update(data)
        if (file := self._file) is not None:
            self._attempt(lambda: file.write(data))

    def compare(self, sent: ValueSent) -> str | None:
        """See ``ReturnedValues.problem``."""
        if not self._problem and self._size < sent.size:
            return None
        if self._file is not None:
            self._attempt(self._file.close)
        if not self._problem and (self._size, self.sha256) != (sent.size, sent.sha256):
            self._problem = "what has come is not what was sent"
        return self._problem

    def remove(self) -> None:
        """Removes the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            remove_file_of_run(self.path)

    def _open(self, run: str, world: World) -> None:
        self._file = new_value_file(run, world)
        self.path = Path(self._file.name)

    def _attempt(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except OSError as error:
            self._problem = self._problem or f"the driver could not keep it: {error}"
            self.remove()
            self._file = None
