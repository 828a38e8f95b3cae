"""The driver's end of the log channel: hears all agents, and tells them to stop.

One TCP connection from each agent, on the driver's address, in frames that only the run's own
agents can make (``frames``). Nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import socket
from typing import Any

from sparkdl_runner.driver.watch import Watch
from sparkdl_runner.wire.channel import FLUSH_SECONDS, ChannelAddress
from sparkdl_runner.wire.frames import LENGTH, MAC_BYTES, MAX_FRAME_BYTES, NONCE_BYTES, FrameCodec
from sparkdl_runner.wire.outcome import Outcome
from sparkdl_runner.wire.serving import ServerThread
from sparkdl_runner.wire.sink import Sink
from sparkdl_runner.wire.vital_signs import VitalSigns
from sparkdl_runner.world import World

HELLO_SECONDS = 10.0
PING_SECONDS = 1.0
# A stopped process is woken for its stacks, which takes a moment.
STACKS_SECONDS = 3.0


class LogServer(ServerThread):
    """The driver's end.

    Args:
        listener: A listening socket on the driver's address.
        host: The name or address under which executors reach the driver.
        num_proc: How many agents there will be.
        sink: Where what they say goes.
    """

    watch: Watch

    def __init__(self, listener: socket.socket, *, host: str, num_proc: int, sink: Sink) -> None:
        super().__init__(listener, name="sparkdl-log-channel", expected=num_proc)
        self._sink = sink
        self._num_proc = num_proc
        self._delivering: set[int] = set()
        self._stacks: dict[int, str] = {}
        self._key = secrets.token_bytes(32)
        self._host = host
        self._writers: dict[int, tuple[asyncio.StreamWriter, FrameCodec]] = {}
        self._stop_requested = False
        self._had: dict[int, int] = {}
        """By partition, the number of the last message that was confirmed."""

    @property
    def channel(self) -> ChannelAddress:
        """What agents need to connect."""
        return ChannelAddress(host=self._host, port=self.address[1], key=self._key)

    def stop_ranks(self) -> None:
        """Tells every agent to end its worker, also one that connects later."""
        self.call(self._send_stop(), FLUSH_SECONDS)

    def ask_stacks(self) -> dict[int, str]:
        """The Python stacks of all ranks that answer in time, by rank."""
        self._stacks.clear()
        self.call(self._gather_stacks(), STACKS_SECONDS)
        return dict(self._stacks)

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Waits until all agents that are connected have said their last word, at most so long."""
        self.call(self._drain(), timeout_seconds)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listens to one agent."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(nonce)
        incoming = FrameCodec(self._key, nonce, b"agent")
        outgoing = FrameCodec(self._key, nonce, b"driver")
        async with asyncio.timeout(HELLO_SECONDS):
            hello = await _read_frame(reader, incoming)
        partition = int(hello["partition"])
        if hello["kind"] != "hello" or not 0 <= partition < self._num_proc:
            raise ValueError("not the hello of one of the run's agents")
        self.recognize()
        if partition in self._writers:
            self._writers[partition][0].transport.abort()  # It comes again: the link had broken.
        self._writers[partition] = writer, outgoing
        self.watch.present(partition, str(hello["host"]))
        ping = self.spawn(self._ping(partition, writer, outgoing))
        try:
            if self._stop_requested:
                writer.write(outgoing.seal({"kind": "stop"}))
            world: World | None = None
            while True:
                message = await _read_frame(reader, incoming)
                self.watch.heard(partition)
                if message["kind"] == "placed":
                    world = World.from_json(message["world"])
                    self.watch.placed(partition, world)
                elif world is not None:
                    number = int(message["number"]) if message["kind"] == "sure" else None
                    if number is not None:
                        message = message["message"]
                        if number <= self._had.get(partition, 0):
                            message = {"kind": "nothing"}  # It had arrived; the word of that not.
                        # Before it is delivered, as it may come again meanwhile.
                        self._had[partition] = max(number, self._had.get(partition, 0))
                    # The sink prints, which may block; the loop must go on hearing the others.
                    self._delivering.add(partition)
                    await asyncio.to_thread(self._deliver, world, message)
                    self._delivering.discard(partition)
                    if number is not None:
                        writer.write(outgoing.seal({"kind": "confirmed", "number": number}))
        finally:
            ping.cancel()
            self._delivering.discard(partition)
            if self._writers.get(partition, (None,))[0] is writer:
                del self._writers[partition]
                self.watch.gone(partition)

    def _deliver(self, world: World, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "output":
            self._sink.output(world, [str(line) for line in message["lines"]])
        elif kind == "message":
            self._sink.message(world, str(message["text"]))
        elif kind == "failed":
            self._sink.failed(Outcome.from_report(world, message["report"]))
        elif kind == "vital_signs":
            self._sink.vital_signs(world, VitalSigns.from_json(message["signs"]))
        elif kind == "progress":
            self._sink.progress(world, message["report"])
        elif kind == "loader_plan":
            self._sink.loader_plan(world, message["plan"])
        elif kind == "host_metrics":
            self._sink.host_metrics(world, message["values"])
        elif kind == "file_part":
            data = base64.b64decode(message["data"])
            name, is_first = str(message["name"]), bool(message["is_first"])
            self._sink.file_part(world, name, data, is_first=is_first)
        elif kind == "stacks":
            self._stacks[world.rank] = str(message["text"])
        elif kind == "ended":
            self.watch.ended(world)

    async def _ping(self, partition: int, writer: asyncio.StreamWriter, codec: FrameCodec) -> None:
        """Lets an agent know that the driver is there, and the watch that the agent is."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            writer.write(codec.seal({"kind": "ping"}))
            if partition in self._delivering:  # Not silent: it is we who do not listen just now.
                self.watch.busy(partition)

    async def _send_stop(self) -> None:
        self._stop_requested = True
        for writer, codec in self._writers.values():
            writer.write(codec.seal({"kind": "stop"}))

    async def _gather_stacks(self) -> None:
        asked = len(self._writers)
        for writer, codec in self._writers.values():
            writer.write(codec.seal({"kind": "stacks"}))
        while len(self._stacks) < asked:
            await asyncio.sleep(0.02)

    async def _drain(self) -> None:
        while self._writers:
            await asyncio.sleep(0.005)


async def _read_frame(reader: asyncio.StreamReader, codec: FrameCodec) -> dict[str, Any]:
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if size > MAX_FRAME_BYTES:
        raise ValueError("the frame is over the limit")
    mac = await reader.readexactly(MAC_BYTES)
    return codec.open(mac, await reader.readexactly(size))
