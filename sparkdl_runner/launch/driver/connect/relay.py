"""A relay beside the server's driver, for agents that do not reach the client themselves.

It carries bytes that it need not understand: they are sealed by a key that it has not. The client
asks it again and again, and each question and answer may come twice. It travels as text and runs
alone, so this file imports the standard library alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import tempfile
import time
from base64 import b64decode, b64encode
from typing import Any

# A relay whose client is not heard for so long ends.
SILENCE_SECONDS = 10.0
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

    def take(self, told: dict[str, Any]) -> bool:
        """Takes what the other end has told; returns whether there was anything new."""
        if (confirmed := told["taken"] - self._confirmed) > 0:
            del self._kept[:confirmed]
            self._confirmed += confirmed
            self._room.set()
        new = b64decode(told["bytes"])[self._taken - told["at"] :]
        self._taken += len(new)
        self._writer.write(new)
        if told["ended"] and not self._other_has_ended:
            self._other_has_ended = True
            self._room.set()
            self._writer.close()
        return bool(new) or confirmed > 0

    def close(self) -> None:
        """Closes the connection."""
        self._other_has_ended = True
        self._room.set()
        self._writer.close()


class Relay:
    """Listens for agents, and for the client's questions."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._count = 0
        self._moved = asyncio.Event()
        self._heard_at = time.monotonic()
        self._is_over = False

    async def serve(self, listener: socket.socket, folder: str) -> None:
        """Carries bytes until the client says that it is over, or is not heard any more.

        Args:
            listener: Agents connect to it.
            folder: Private; the socket for questions is made in it.
        """
        agents = await asyncio.start_server(self._agent, sock=listener)
        place = os.path.join(folder, "questions")
        questions = await asyncio.start_unix_server(self._question, place, limit=_LINE_BYTES)
        print(json.dumps([*listener.getsockname()[:2], place]), flush=True)
        nothing = os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):  # Whoever has started this one reads until then.
            os.dup2(nothing, output)
        async with agents, questions:
            while not self._is_over and time.monotonic() - self._heard_at < SILENCE_SECONDS:
                await asyncio.sleep(0.2)
            for link in self._links.values():
                link.close()

    async def _agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._links) >= _MOST_LINKS:
            writer.close()
            return
        self._count += 1
        link = self._links[str(self._count)] = Link(reader, writer, self._moved)
        await link.fill()

    async def _question(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = json.loads(await reader.readline())
        self._heard_at = time.monotonic()
        self._is_over = question["over"]
        for name, told in question["links"].items():
            if name in self._links:
                self._links[name].take(told)
        self._links = {name: link for name, link in self._links.items() if not link.is_over}
        answer = {name: link.told() for name, link in self._links.items()}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()


def _listener(host: str, ports: list[int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            one.bind((host, port))
            one.listen(_MOST_LINKS)
        except OSError:
            one.close()
        else:
            return one
    raise OSError(f"no port of {ports[0]} to {ports[-1]} is free at {host}")


def main(host: str, first: str, last: str) -> None:
    """Runs a relay, and prints where it is."""
    listener = _listener(host, list(range(int(first), int(last) + 1)))
    if os.fork():  # Whoever has started this one waits for no longer than that.
        os._exit(0)
    folder = tempfile.mkdtemp(prefix="sparkdl-relay-")
    try:
        asyncio.run(Relay().serve(listener, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
