"""An agent's end of the log channel: sends what its rank says, and hears the driver's stop."""

from __future__ import annotations

import queue
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sparkdl_runner.frames import LENGTH, MAC_BYTES, MAX_FRAME_BYTES, NONCE_BYTES, FrameCodec
from sparkdl_runner.log_server import FLUSH_SECONDS, ChannelAddress
from sparkdl_runner.outcome import Outcome
from sparkdl_runner.sink import Sink, write_lines
from sparkdl_runner.world import World

CONNECT_SECONDS = 5.0
# What an agent holds back for a driver that is slow to read; beyond it, lines are dropped.
MAX_QUEUED_FRAMES = 256
# How long the driver may take to answer a failure with a stop to all.
ANSWER_SECONDS = 4.0
KEEP_ALIVE_SECONDS = 30


class LogClient(Sink):
    """An agent's end. Never blocks the agent: what the driver does not take in time is dropped.

    Args:
        channel: From the closure.
        world: Who speaks.
        relay_output: Whether printed lines are sent, or only messages and failures.
        echo_output: Whether printed lines also go to this process's stderr, which on a cluster
            is the executor's log.
        on_stop: Called when the driver asks for the worker's end.
    """

    def __init__(
        self,
        channel: ChannelAddress,
        world: World,
        *,
        relay_output: bool,
        echo_output: bool = False,
        on_stop: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._world = world
        self._relay_output = relay_output
        self._echo_output = echo_output
        self._on_stop = on_stop
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_QUEUED_FRAMES)
        self._connected = threading.Event()
        self._settled = threading.Event()
        self._stop_heard = threading.Event()
        self.dropped_lines = 0
        self._sender = threading.Thread(target=self._send, name="sparkdl-log-send", daemon=True)
        self._sender.start()

    def output(self, world: World, lines: list[str]) -> None:
        """See ``Sink.output``."""
        if self._echo_output:
            write_lines(sys.stderr, world, lines)
        if self._relay_output and not self._put({"kind": "output", "lines": lines}):
            self.dropped_lines += len(lines)

    def message(self, world: World, text: str) -> None:
        """See ``Sink.message``."""
        if not self._put({"kind": "message", "text": text}):
            self.dropped_lines += 1

    def failed(self, outcome: Outcome) -> None:
        """See ``Sink.failed``; without the pickled exception, which is not for this channel."""
        report = {"kind": "failed", "report": outcome.to_report()}
        while not self._put(report):
            # What failed matters more than what was printed.
            with suppress(queue.Empty):
                self._queue.get_nowait()
                self.dropped_lines += 1

    @property
    def is_connected(self) -> bool:
        """Whether the driver hears us; waits for the connection to be made or to fail."""
        self._settled.wait(CONNECT_SECONDS + 1)
        return self._connected.is_set()

    def driver_has_heard(self) -> bool:
        """Whether the driver has answered a failure: it tells everyone to stop."""
        return self.is_connected and self._stop_heard.wait(ANSWER_SECONDS)

    def notes(self) -> tuple[str, ...]:
        """What the driver should say about this connection after the run."""
        notes = []
        if not self.is_connected:
            notes.append(
                f"rank {self._world.rank} on host {self._world.host} could not reach the driver at "
                f"{self._channel.host}:{self._channel.port}, so its output was not shown"
            )
        if self.dropped_lines:
            notes.append(
                f"{self.dropped_lines} lines of rank {self._world.rank} were not shown, since the "
                "driver could not keep up"
            )
        return tuple(notes)

    def close(self) -> None:
        """Sends what is queued, as far as the driver takes it in time."""
        try:
            self._queue.put(None, timeout=FLUSH_SECONDS)
        except queue.Full:
            pass
        self._sender.join(FLUSH_SECONDS)

    def _put(self, message: dict[str, Any]) -> bool:
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            return False
        return True

    def _send(self) -> None:
        try:
            place = (self._channel.host, self._channel.port)
            with socket.create_connection(place, timeout=CONNECT_SECONDS) as connection:
                self._talk(connection)
        except (OSError, EOFError) as error:
            if not self._connected.is_set():
                print(
                    f"sparkdl_runner: rank {self._world.rank} cannot reach the driver's log channel"
                    f" at {self._channel.host}:{self._channel.port} ({error}); the run goes on, its"
                    " output is not shown on the driver.",
                    file=sys.stderr,
                )
            self._connected.clear()
        finally:
            self._settled.set()

    def _talk(self, connection: socket.socket) -> None:
        nonce = _receive_exactly(connection, NONCE_BYTES)
        outgoing = FrameCodec(self._channel.key, nonce, b"agent")
        incoming = FrameCodec(self._channel.key, nonce, b"driver")
        connection.sendall(outgoing.seal({"kind": "hello", "world": self._world.to_json()}))
        connection.settimeout(None)
        # A rank may be silent for hours, and what lies between forgets silent connections.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_SECONDS)
        self._connected.set()
        self._settled.set()
        listening = threading.Thread(
            target=self._listen, args=(connection, incoming), name="sparkdl-log-hear", daemon=True
        )
        listening.start()
        while (message := self._queue.get()) is not None:
            connection.sendall(outgoing.seal(message))
        # The driver closes when it has read all; that is what the other thread then hears.
        connection.shutdown(socket.SHUT_WR)
        listening.join(FLUSH_SECONDS)

    def _listen(self, connection: socket.socket, codec: FrameCodec) -> None:
        try:
            while True:
                (size,) = LENGTH.unpack(_receive_exactly(connection, LENGTH.size))
                if size > MAX_FRAME_BYTES:
                    return
                mac = _receive_exactly(connection, MAC_BYTES)
                if codec.open(mac, _receive_exactly(connection, size))["kind"] == "stop":
                    self._stop_heard.set()
                    self._on_stop()
        except (OSError, EOFError, ValueError):
            self._connected.clear()  # The driver has closed the connection, or is gone.


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError("the driver closed the connection")
        data += chunk
    return data
