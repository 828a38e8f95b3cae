"""Many agents in one process, for the scale benchmark: the log channel's protocol, no workers.

``python -m benchmarks.ranks.scale_agents``: the first line of standard input is JSON with the
driver's address and the channel's key, and who this process's agents are.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from sparkdl_runner.launch.wire import messages
from sparkdl_runner.launch.wire.frames import NONCE_BYTES, FrameCodec, read_frame
from sparkdl_runner.launch.wire.message_json import decode, encode
from sparkdl_runner.launch.wire.messages import Message
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, World

LOOK_SECONDS = 1.0
TRIES = 60


class Agent:
    """One agent whose worker does nothing but wait, until it or another dies.

    Each agent tells how its worker failed, whatever the driver says first. Else most of a few ranks
    would be stopped before they have lost their peers, and most of thousands after it, and the
    driver's work would not be the same for each rank.

    Args:
        peer: Who it is.
        victim: The rank whose worker dies, at a word from the benchmark.
    """

    def __init__(self, peer: Peer, key: bytes, victim: int) -> None:
        self._peer = peer
        self._key = key
        self._victim = victim
        self._has_failed = False

    async def run(self, host: str, port: int, death: asyncio.Event) -> None:
        """Joins, again where the connection breaks, and ends when the driver says so."""
        for _ in range(TRIES):
            try:
                return await self._talk(*await asyncio.open_connection(host, port), death)
            except (OSError, EOFError):
                await asyncio.sleep(0.5)
        raise OSError(f"{host}:{port} cannot be reached")

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, death: asyncio.Event
    ) -> None:
        nonce = await reader.readexactly(NONCE_BYTES)
        self._writer, self._codec = writer, FrameCodec(self._key, nonce, b"agent")
        self._send(messages.Hello(self._peer))
        telling: list[asyncio.Task[None]] = []
        world: World | None = None
        codec = FrameCodec(self._key, nonce, b"driver")
        try:
            while not isinstance(
                heard := decode(*await read_frame(reader, codec), messages.DRIVER_TO_AGENT),
                messages.Stop,
            ):
                if isinstance(heard, messages.Assigned):
                    world = heard.assignment.world
                    self._send(messages.Placed(world))
                    telling += [
                        asyncio.create_task(self._look()),
                        asyncio.create_task(self._fail(world, death)),
                    ]
            if world is not None:
                self._tell_failure(world)
            self._send(messages.Ended())
            writer.write_eof()
            await reader.read()
        finally:
            for one in telling:
                one.cancel()
            writer.close()

    async def _look(self) -> None:
        signs = messages.VitalSigns(
            silent_seconds=0.1, idle_seconds=0.1, joining_seconds=0.0, state="S", has_begun=True
        )
        while True:
            self._send(signs)
            await asyncio.sleep(LOOK_SECONDS)

    async def _fail(self, world: World, death: asyncio.Event) -> None:
        await death.wait()
        if world.rank != self._victim:
            await asyncio.sleep(0.05)  # A peer's connection is reset after a moment.
        self._tell_failure(world)

    def _tell_failure(self, world: World) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        is_victim = world.rank == self._victim
        outcome = Outcome(
            world=world,
            status=Status.DIED if is_victim else Status.FAILED,
            ended_at=time.time(),
            exit_code=-9 if is_victim else None,
            exception="" if is_victim else "RuntimeError",
            message="" if is_victim else "Connection closed by peer. " + "gloo " * 40,
            traceback="" if is_victim else "  File train.py, line 1, in train\n" * 40,
            is_communication_error=not is_victim,
            output_tail=("some output",) * 20,
        )
        self._send(messages.Failed(outcome, number=1))

    def _send(self, message: Message) -> None:
        self._writer.write(self._codec.seal(*encode(message)))


def _hear(death: asyncio.Event) -> None:
    sys.stdin.readline()
    death.set()


async def _run_all(given: Mapping[str, Any]) -> None:
    death = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, _hear, death)
    key = bytes.fromhex(given["key"])
    agents = [Agent(Peer.from_json(peer), key, given["victim"]) for peer in given["peers"]]
    await asyncio.gather(*(one.run(given["host"], given["port"], death) for one in agents))


if __name__ == "__main__":
    asyncio.run(_run_all(json.loads(sys.stdin.readline())))
