"""The private line between an agent and its worker: one socket pair, inherited, never on a network.

A message is a small JSON object and a payload of raw bytes. The only pickles here are the user's
function (agent to worker) and its result or exception (worker to agent); both came by, or leave
by, Spark's own transport.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkdl_runner.world import World

_HEADER = struct.Struct(">IQ")


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """All that a worker is told, after it has started and warmed up its imports."""

    world: World
    environment: dict[str, str]
    """What to set before the function is unpickled."""
    search_path: list[str]
    """The driver's ``sys.path``; what exists here is appended to the worker's."""
    function: bytes = field(repr=False)
    """``main`` and its arguments, pickled on the driver."""

    def send(self, line: Line) -> None:
        """Sends the envelope down the line."""
        fields = asdict(self)
        function = fields.pop("function")
        line.send({**fields, "world": self.world.to_json()}, function)

    @classmethod
    def receive(cls, line: Line) -> Envelope:
        """Waits for an envelope.

        Raises:
            EOFError: The agent is gone.
        """
        fields, function = line.receive()
        fields["world"] = World.from_json(fields["world"])
        return cls(**fields, function=function)


class Line:
    """One end of the line. Sending is safe from several threads, receiving from one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Sends one message.

        Raises:
            OSError: The other end is gone.
        """
        text = json.dumps(message).encode()
        with self._sending:
            self._socket.sendall(_HEADER.pack(len(text), len(payload)) + text)
            if payload:
                self._socket.sendall(payload)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Waits for one message.

        Raises:
            EOFError: The other end is gone.
        """
        text_size, payload_size = _HEADER.unpack(self._receive_exactly(_HEADER.size))
        message = json.loads(self._receive_exactly(text_size))
        return message, bytes(self._receive_exactly(payload_size))

    def _receive_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        filled = 0
        while filled < size:
            try:
                count = self._socket.recv_into(view[filled:])
            except ConnectionError:
                count = 0
            if count == 0:
                raise EOFError("the other end of the control line is gone")
            filled += count
        return data

    def close(self) -> None:
        """Closes this end; a thread that waits in ``receive`` gets EOFError."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()
