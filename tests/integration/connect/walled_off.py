"""A Spark Connect server that reaches nobody, and a door of one port to it, as a proxy is."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from namespaces import ip

_CLONE_NEWNET = 0x40000000


@contextmanager
def namespace() -> Iterator[str]:
    """A network namespace that has nothing but its own loopback interface."""
    name = f"sdl-walled-{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "delete", name)


@contextmanager
def door(name: str, port: int) -> Iterator[int]:
    """Takes connections at a port of this host for a port in there. Gives this host's port."""
    listener = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.new_event_loop()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while some := await reader.read(1 << 16):
            writer.write(some)
            await writer.drain()
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, inner[1]), copy(inner[0], writer))
        except OSError:
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(pass_on, sock=listener)
        async with server:
            await stopped.wait()

    def run() -> None:
        with open(f"/run/netns/{name}") as there:  # This thread alone goes there.
            if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        loop.run_until_complete(serve())

    stopped = asyncio.Event()
    thread = threading.Thread(target=run, name="door")
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()
