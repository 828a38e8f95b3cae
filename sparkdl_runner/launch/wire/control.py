"""The private line between an agent and its worker: one socket pair, inherited, never on a network.

A message is a small JSON object and a payload of raw bytes. The only pickles here are the user's
function (agent to worker) and its result or exception (worker to agent); both came by, or leave
by, Spark's own transport.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkdl_runner.launch.wire.frames import receive_exactly
from sparkdl_runner.launch.wire.message_json import encode
from sparkdl_runner.launch.wire.messages import Message, Progress
from sparkdl_runner.rank.world import World

if TYPE_CHECKING:
    from sparkdl_runner.launch.wire.attempt import AttemptSpec

_HEADER = struct.Struct(">IQ")


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The message by which a worker, after its imports, learns its task."""

    world: World
    environment: dict[str, str] = field(repr=False)
    """The variables to set before the function is unpickled."""
    to_forget: list[str] = field(default_factory=list)
    """Those of this host to remove before that."""
    search_path: list[str]
    """The driver's ``sys.path``. Folders that exist here, and that others cannot change, are
    appended to the worker's."""
    driver_files: str = ""
    """Tells whether a rank sees the driver's own files: ``worker.driver_folders.own_files``."""
    function: bytes = field(repr=False)
    """``main`` and its arguments, pickled on the driver."""
    mlflow_run: dict[str, Any] | None = field(default=None, repr=False)
    """The MLflow run that the training goes into; see ``tracking.rank_run.RankRun``."""
    system_metrics: bool = False
    """Whether the first rank of a host measures how busy the host is."""
    trace_steps: bool = False
    """Whether rank 0 traces its first steps."""
    listener: socket.socket | None = field(default=None, repr=False)
    """A listening socket on which this rank serves its backend's store; the worker gets a copy."""

    @classmethod
    def of(
        cls,
        attempt: AttemptSpec,
        world: World,
        *,
        environment: dict[str, str],
        listener: socket.socket | None = None,
    ) -> Envelope:
        """Makes a rank's envelope.

        Args:
            attempt: What all ranks run.
            world: The rank's place.
            environment: What its backend needs.
            listener: What it serves its backend's store on, if it is to do that.
        """
        envelope = cls(
            world=world,
            environment=environment,
            search_path=list(attempt.search_path),
            driver_files=attempt.driver_files,
            function=attempt.function,
            listener=listener,
        )
        ticket = attempt.ticket
        if ticket is None:
            return replace(envelope, system_metrics=attempt.config.live_page)
        run, variables = ticket.for_rank(world.rank, world.host)
        return replace(
            envelope,
            environment={**variables, **environment},
            to_forget=[name for name in ticket.to_forget() if name not in attempt.variables],
            mlflow_run=run.to_json(),
            system_metrics=ticket.system_metrics,
            trace_steps=ticket.trace_steps,
        )

    def send(self, line: WorkerPipe) -> None:
        """Sends the envelope down the line."""
        fields = asdict(replace(self, listener=None))
        function = fields.pop("function")
        fields |= {"world": self.world.to_json(), "listener": self.listener is not None}
        line.send_values(fields, function)
        if self.listener is not None:
            line.send_files([self.listener.fileno()])

    @classmethod
    def receive(cls, line: WorkerPipe) -> Envelope:
        """Waits for an envelope.

        Raises:
            EOFError: The agent is gone.
        """
        fields, function = line.receive()
        fields["world"] = World.from_json(fields["world"])
        fields["listener"] = (
            socket.socket(fileno=line.receive_files(1)[0]) if fields["listener"] else None
        )
        return cls(**fields, function=function)


class WorkerPipe:
    """One end of the pipe between agent and worker.

    Sending is safe from several threads, receiving from one.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Sends one message.

        Raises:
            OSError: The other end is gone.
        """
        self.send_values(*encode(message))

    def report(self, report: dict[str, Any]) -> None:
        """Sends a report of this rank, as ``send`` does."""
        self.send(Progress.of(report))

    def send_values(self, values: dict[str, Any], payload: bytes = b"") -> None:
        """Sends plain values, and bytes beside them, as ``send`` does."""
        text = json.dumps(values).encode()
        with self._sending:
            self._socket.sendall(_HEADER.pack(len(text), len(payload)) + text)
            if payload:
                self._socket.sendall(payload)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Waits for one message.

        Raises:
            EOFError: The other end is gone, or this one was closed.
        """
        text_size, payload_size = _HEADER.unpack(self._receive_exactly(_HEADER.size))
        values = json.loads(self._receive_exactly(text_size))
        return values, bytes(self._receive_exactly(payload_size))

    def send_files(self, files: Sequence[int]) -> None:
        """Sends copies of open files or sockets.

        Raises:
            OSError: The other end is gone.
        """
        with self._sending:
            socket.send_fds(self._socket, [b"\0"], files)

    def receive_files(self, number: int) -> list[int]:
        """Waits for open files or sockets, whose descriptors are not inheritable.

        Raises:
            EOFError: The other end is gone.
        """
        files = socket.recv_fds(self._socket, 1, number)[1]
        if len(files) != number:
            raise EOFError("the control line is closed")
        for file in files:
            os.set_inheritable(file, False)
        return files

    def wait(self, seconds: float) -> bool:
        """Waits for a message, or the other end's end. Returns whether there is one in time."""
        waiting = select.poll()  # select() refuses descriptors from 1024 on.
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(None if seconds == math.inf else 1000 * seconds))

    def has_word(self) -> bool:
        """Whether a message waits, or the other end is gone. Reads nothing and does not block."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _receive_exactly(self, size: int) -> bytearray:
        try:
            return receive_exactly(self._socket, size)
        except OSError:  # A reset; or this end was closed between two messages.
            raise EOFError("the control line is closed") from None

    def close(self) -> None:
        """Closes this end; a thread that waits in ``receive``, or comes to it, gets EOFError."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()
