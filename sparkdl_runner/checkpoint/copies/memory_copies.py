"""A rank's copies of checkpoints in its host's memory, for the ranks of a restart.

The manifest on the storage decides which checkpoint counts. A copy is found by the SHA-256 in that
manifest, and its bytes are checked against it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from contextlib import suppress

from sparkdl_runner.checkpoint.copies.holder import MEMORY
from sparkdl_runner.checkpoint.directory.files import FileEntry
from sparkdl_runner.checkpoint.directory.in_memory import InMemory
from sparkdl_runner.checkpoint.directory.memory import FREE_SHARE, leaves_room
from sparkdl_runner.rank import restart_memory, world

# Python needs these to start. The rank's other variables may hold secrets.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "LANG", "TMPDIR")
_BEFORE_THIS_ATTEMPT = -1
_SEND_SECONDS = 20.0

_log = logging.getLogger(__name__)


class MemoryCopies:
    """Keeps what this rank saves, and finds what the ranks of earlier attempts have kept.

    Args:
        is_wanted: Whether to do so, where there are restarts.
    """

    def __init__(self, *, is_wanted: bool) -> None:
        self.found = InMemory()
        """Files that earlier attempts have left here."""
        self._line: socket.socket | None = None
        self._step = self._step_before = _BEFORE_THIS_ATTEMPT
        self._has_warned = False
        self._run, lives_with = restart_memory.of_this_rank()
        # A process that a rank has started has its variables, and is none.
        if not is_wanted or not self._run or not world.in_worker():
            self._run = ""
            return
        self._world = world.current_world()
        self.found = InMemory(self._paths())
        if lives_with:
            try:
                os.close(os.pidfd_open(lives_with))
                os.close(os.memfd_create(MEMORY))
                self._start(lives_with)
            except (OSError, AttributeError) as error:
                self.warn(f"cannot be kept ({error})")

    def hand_on(self) -> None:
        """All ranks have restored: leaves what this one has read to this attempt's restart.

        Files that no rank of this host has read are dropped: older steps, and other hosts' files.
        """
        for memory in self.found.read.values():
            self._tell(memory, step=_BEFORE_THIS_ATTEMPT)
        self.found.close()
        self._end_earlier()

    def begin(self, step: int) -> None:
        """A save begins: beside it, only the one before stays in memory."""
        self._tell(drop_before=self._step)
        self._step_before, self._step = self._step, step

    def failed(self) -> None:
        """The save that began has failed: the one before stays the newest."""
        self._tell(drop=self._step)
        self._step = self._step_before

    def served(self, step: int) -> range:
        """The ranks of this host, if this one keeps what others saved of ``step``, the newest."""
        if self._line is None or self._step != step or self._world.local_rank:
            return range(0)
        return range(self._world.rank, self._world.rank + self._world.local_size)

    def keep(self, entry: FileEntry, content: bytes, step: int | None = None) -> None:
        """Keeps a file of the save that has begun, or of an earlier step. Does not raise."""
        if self._line is None:
            return
        try:
            # All ranks of a host save at the same moment.
            if not leaves_room(entry.size_bytes * self._world.local_size):
                raise MemoryError(f"less than {FREE_SHARE:.0%} of the memory would stay free")
            with os.fdopen(os.memfd_create(MEMORY + entry.sha256), "wb") as file:
                file.write(content)
                file.flush()
                self._tell(file.fileno(), step=self._step if step is None else step)
        except (OSError, MemoryError) as error:
            self.warn(f"is left out, or a part of it, for step {self._step} ({error})")

    def committed(self, step: int) -> None:
        """The save of this step is committed: nothing older stays in memory."""
        self._tell(drop_before=step)

    def close(self, *, is_over: bool) -> None:
        """Lets go of all memory; unless the training is over, what others hold stays there."""
        self.found.close()
        if is_over:
            self._tell(end=True)
            self._end_earlier()
        self._has_warned = True  # A thread may be using the line.
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _end_earlier(self) -> None:
        if self._run:
            restart_memory.end_holders(self._run, before=self._world.attempt)

    def _paths(self) -> dict[str, str]:
        """By its SHA-256 the path of each file that earlier attempts hold here."""
        paths = {}
        for pid, _, _ in restart_memory.holders(self._run):
            with suppress(OSError):  # It has ended meanwhile.
                for number in os.listdir(folder := f"/proc/{pid}/fd"):
                    name = os.readlink(path := f"{folder}/{number}").removesuffix(" (deleted)")
                    if name.startswith(prefix := f"/memfd:{MEMORY}"):
                        paths[name.removeprefix(prefix)] = path
        return paths

    def _start(self, lives_with: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "sparkdl_runner.checkpoint.copies.holder"]
        command += [str(theirs.fileno()), str(lives_with)]
        environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(
            path for path in sys.path if path and isinstance(path, str)
        )
        with theirs:
            self._holder = subprocess.Popen(
                [*command, *restart_memory.arguments(self._run, self._world.attempt)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.settimeout(_SEND_SECONDS)
        self._line = ours

    def _tell(self, *memories: int, **message: object) -> None:
        if (line := self._line) is not None:
            try:
                socket.send_fds(line, [json.dumps(message).encode()], memories)
            except OSError as error:
                line.close()
                self._line = None
                self.warn(f"cannot be kept: the process that holds it is gone, or hangs ({error})")

    def warn(self, problem: str) -> None:
        """Says what is wrong with the copies, once."""
        if not self._has_warned:
            self._has_warned = True
            who = f"Rank {self._world.rank} on host {self._world.place}"
            then = "A restart then reads the storage"
            _log.warning("%s: a checkpoint's copy in memory %s. %s.", who, problem, then)
