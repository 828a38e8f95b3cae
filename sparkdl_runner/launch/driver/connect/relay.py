"""A relay beside the server's driver, for agents that do not reach the client themselves.

It carries bytes that it need not understand: they are sealed by a key that it has not. The client
asks it again and again, and each question and answer may come twice, or late. It travels as text
and runs alone, so this file imports the standard library alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import Any

# A relay whose client is not heard for so long ends.
SILENCE_SECONDS = 10.0
# Another question may be on its way when the client says that it is over.
_LATE_SECONDS = 1.0
# A question travels in the text of a query, an answer in the schema of its result.
_MOST_AT_ONCE = 1 << 20
# A link keeps so many bytes that the other end has not confirmed; then its sender waits.
_MOST_KEPT = 4 << 20
_LINE_BYTES = 64 << 20
# Each is an agent, or a stranger.
_MOST_LINKS = 4096


class Link:
    """One of the two ends of a connection whose bytes travel in questions and answers.

    Args:
        reader: Gives what is to be sent to the other end.
        writer: Takes what has come from there.
        moved: Set whenever there is something to tell.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: asyncio.Event
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._moved = moved
        self._kept = bytearray()
        self._confirmed = 0
        self._taken = 0
        self._room = asyncio.Event()
        self._has_ended = False
        self._other_has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether both ends have closed, and each has all of the other's bytes."""
        return self._has_ended and self._other_has_ended and not self._kept

    async def fill(self) -> None:
        """Reads what is to be sent, until the connection's end."""
        try:
            while some := await self._reader.read(_MOST_AT_ONCE):
                self._kept += some
                self._moved.set()
                while len(self._kept) > _MOST_KEPT and not self._other_has_ended:
                    self._room.clear()
                    await self._room.wait()
        except OSError:
            pass
        finally:
            self._has_ended = True
            self._moved.set()

    def told(self) -> dict[str, Any]:
        """A message with the next bytes that the other end has not confirmed."""
        some = bytes(self._kept[:_MOST_AT_ONCE])
        return {
            "at": self._confirmed,
            "bytes": b64encode(some).decode(),
            "taken": self._taken,
            "ended": self._has_ended and len(some) == len(self._kept),
        }

    def take(self, told: dict[str, Any]) -> None:
        """Takes what the other end has told, as far as it is new."""
        if (confirmed := told["taken"] - self._confirmed) > 0:
            del self._kept[:confirmed]
            self._confirmed += confirmed
            self._room.set()
            if self._kept:  # More than one telling holds.
                self._moved.set()
        new = b64decode(told["bytes"])[self._taken - told["at"] :]
        self._taken += len(new)
        self._writer.write(new)
        if told["ended"] and not self._other_has_ended:
            self._other_has_ended = True
            self._room.set()
            self._writer.close()

    def close(self) -> None:
        """Closes the connection."""
        self._other_has_ended = True
        self._room.set()
        self._writer.close()


class Relay:
    """Listens for agents, and for the client's questions."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._agents = self._answers = self._waiting = 0
        self._moved = asyncio.Event()
        self._heard_at = time.monotonic()
        self._is_over = False

    async def serve(self, agents: socket.socket, questions: socket.socket) -> None:
        """Carries bytes until the client says that it is over, or is not heard any more.

        Args:
            agents: Listens for them.
            questions: Listens for the client's.
        """
        async with (
            await asyncio.start_server(self._agent, sock=agents),
            await asyncio.start_unix_server(self._question, sock=questions, limit=_LINE_BYTES),
        ):
            while self._waiting or time.monotonic() < self._heard_at + (
                _LATE_SECONDS if self._is_over else SILENCE_SECONDS
            ):
                await asyncio.sleep(0.2)
            for link in self._links.values():
                link.close()

    async def _agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._links) >= _MOST_LINKS:
            writer.close()
            return
        self._agents += 1
        link = self._links[str(self._agents)] = Link(reader, writer, self._moved)
        self._moved.set()  # The driver speaks first.
        await link.fill()

    async def _question(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = json.loads(await reader.readline())
        self._heard_at = time.monotonic()
        self._is_over |= question["over"]
        for name, told in question["links"].items():
            if name in self._links:
                self._links[name].take(told)
        if self._is_over:
            self._moved.set()
        self._waiting += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), question["wait_seconds"])
        if not self._is_over:
            self._moved.clear()
        self._links = {name: link for name, link in self._links.items() if not link.is_over}
        self._answers += 1
        links = {name: link.told() for name, link in self._links.items()}
        writer.write(json.dumps({"number": self._answers, "links": links}).encode() + b"\n")
        try:
            await writer.drain()
        finally:
            self._waiting -= 1
            writer.close()


def main(agents: str, questions: str) -> None:
    """Runs a relay on the descriptors of its two listeners; removes the folder of the second."""
    with socket.socket(fileno=int(agents)) as one, socket.socket(fileno=int(questions)) as other:
        folder = os.path.dirname(other.getsockname())
        try:
            asyncio.run(Relay().serve(one, other))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
