"""What agents tell the driver while a run goes on, and the driver's word to stop.

One TCP connection from each agent to the driver, bound to the driver's address. A frame is
``length (4 bytes) | HMAC-SHA256 (32 bytes) | JSON``. The MAC covers the connection's nonce (sent by
the driver when it accepts), the direction, the frame's number and the text, under a key that
exists for one attempt only and travels in Spark's closure; so frames cannot be forged, replayed,
reordered or reflected. The first bad frame ends its connection. Nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import queue
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.outcome import Outcome
from sparkdl_runner.serving import ServerThread
from sparkdl_runner.worker_process import Sink
from sparkdl_runner.world import World

NONCE_BYTES = 16
MAC_BYTES = 32
MAX_FRAME_BYTES = 1024 * 1024
LENGTH = struct.Struct(">I")

CONNECT_SECONDS = 5.0
HELLO_SECONDS = 10.0
# What an agent holds back for a driver that is slow to read; beyond it, lines are dropped.
MAX_QUEUED_FRAMES = 256
# How long the end of a run waits for words that are still on their way.
FLUSH_SECONDS = 3.0


class FrameCodec:
    """Seals and opens the frames of one direction of one connection."""

    def __init__(self, key: bytes, nonce: bytes, direction: bytes) -> None:
        self._key = key
        self._prefix = nonce + direction
        self._number = 0

    def seal(self, message: dict[str, Any]) -> bytes:
        """Makes the next frame.

        Raises:
            ValueError: The message is too large.
        """
        text = json.dumps(message).encode()
        if len(text) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(text)} bytes is over the limit {MAX_FRAME_BYTES}")
        return LENGTH.pack(len(text)) + self._mac(text) + text

    def open(self, mac: bytes, text: bytes) -> dict[str, Any]:
        """Checks and decodes the next frame.

        Raises:
            ValueError: It was not sealed as this frame of this connection, or is no JSON object.
        """
        if not hmac.compare_digest(mac, self._mac(text)):
            raise ValueError("the frame's MAC is wrong")
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ValueError("the frame is no JSON object")
        return message

    def _mac(self, text: bytes) -> bytes:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        return hmac.digest(self._key, self._prefix + number + text, "sha256")


@dataclass(frozen=True, kw_only=True)
class ChannelAddress:
    """Where agents reach the driver, and the key to be heard. Travels in Spark's closure only."""

    host: str
    port: int
    key: bytes = field(repr=False)


class LogServer(ServerThread):
    """The driver's end.

    Args:
        listener: A listening socket on the driver's address.
        host: The name or address under which executors reach the driver.
        num_proc: How many agents there will be.
        sink: Where what they say goes.
    """

    def __init__(self, listener: socket.socket, *, host: str, num_proc: int, sink: Sink) -> None:
        super().__init__(listener, name="sparkdl-log-channel", max_connections=4 * num_proc + 64)
        self._sink = sink
        self._key = secrets.token_bytes(32)
        self._host = host
        self._writers: dict[int, tuple[asyncio.StreamWriter, FrameCodec]] = {}
        self._stop_requested = False

    @property
    def channel(self) -> ChannelAddress:
        """What agents need to connect."""
        return ChannelAddress(host=self._host, port=self.address[1], key=self._key)

    def admits(self, peer_address: str) -> bool:
        """Any address may try; without the key it is not heard."""
        return True

    def stop_ranks(self) -> None:
        """Tells every agent to end its worker, also one that connects later."""
        self.call(self._send_stop(), FLUSH_SECONDS)

    def flush(self) -> None:
        """Waits until all agents that are connected have said their last word."""
        self.call(self._drain(), FLUSH_SECONDS)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listens to one agent."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(nonce)
        incoming = FrameCodec(self._key, nonce, b"agent")
        outgoing = FrameCodec(self._key, nonce, b"driver")
        async with asyncio.timeout(HELLO_SECONDS):
            world = World.from_json((await _read_frame(reader, incoming))["world"])
        self._writers[world.rank] = writer, outgoing
        try:
            if self._stop_requested:
                writer.write(outgoing.seal({"kind": "stop"}))
            while True:
                message = await _read_frame(reader, incoming)
                # The sink prints, which may block; the loop must go on hearing the others.
                await asyncio.to_thread(self._deliver, world, message)
        finally:
            del self._writers[world.rank]

    def _deliver(self, world: World, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "output":
            self._sink.output(world, [str(line) for line in message["lines"]])
        elif kind == "message":
            self._sink.message(world, str(message["text"]))
        elif kind == "failed":
            self._sink.failed(Outcome.from_report(world, message["report"]))

    async def _send_stop(self) -> None:
        self._stop_requested = True
        for writer, codec in self._writers.values():
            writer.write(codec.seal({"kind": "stop"}))

    async def _drain(self) -> None:
        while self._writers:
            await asyncio.sleep(0.005)


async def _read_frame(reader: asyncio.StreamReader, codec: FrameCodec) -> dict[str, Any]:
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if size > MAX_FRAME_BYTES:
        raise ValueError("the frame is over the limit")
    mac = await reader.readexactly(MAC_BYTES)
    return codec.open(mac, await reader.readexactly(size))


class LogClient(Sink):
    """An agent's end. Never blocks the agent: what the driver does not take in time is dropped.

    Args:
        channel: From the closure.
        world: Who speaks.
        relay_output: Whether printed lines are sent, or only messages and failures.
        on_stop: Called when the driver asks for the worker's end.
    """

    def __init__(
        self,
        channel: ChannelAddress,
        world: World,
        *,
        relay_output: bool,
        on_stop: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._world = world
        self._relay_output = relay_output
        self._on_stop = on_stop
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_QUEUED_FRAMES)
        self._connected = threading.Event()
        self._settled = threading.Event()
        self.dropped_lines = 0
        self._sender = threading.Thread(target=self._send, name="sparkdl-log-send", daemon=True)
        self._sender.start()

    def output(self, world: World, lines: list[str]) -> None:
        """See ``Sink.output``."""
        if self._relay_output and not self._put({"kind": "output", "lines": lines}):
            self.dropped_lines += len(lines)

    def message(self, world: World, text: str) -> None:
        """See ``Sink.message``."""
        if not self._put({"kind": "message", "text": text}):
            self.dropped_lines += 1

    def failed(self, outcome: Outcome) -> None:
        """See ``Sink.failed``; without the pickled exception, which is not for this channel."""
        self._put({"kind": "failed", "report": outcome.to_report()})

    @property
    def is_connected(self) -> bool:
        """Whether the driver hears us; waits for the connection to be made or to fail."""
        self._settled.wait(CONNECT_SECONDS + 1)
        return self._connected.is_set()

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
                    self._on_stop()
        except (OSError, EOFError, ValueError):
            pass  # The driver has closed, or is gone; Spark ends this task if it is.


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError("the driver closed the connection")
        data += chunk
    return data
