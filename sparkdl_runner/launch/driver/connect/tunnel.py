"""The client's end of a relay: what agents send there arrives at a listener of this process."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, TypeVar

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.connect import relay, relay_call
from sparkdl_runner.launch.driver.connect.by_value import send_by_value
from sparkdl_runner.launch.driver.connect.relay import SILENCE_SECONDS, Link
from sparkdl_runner.launch.driver.connect.session import setting

# How long a question may wait in the relay for something to come, and the next one here.
_PARKED_SECONDS = 1.0
_PAUSE_SECONDS = 0.02
_CLOSE_SECONDS = 2.0
_T = TypeVar("_T")


@contextmanager
def tunnel(session: Any, config: RunConfig, to: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Has a relay beside the server's driver take connections for a listener of this process.

    Args:
        session: The Spark Connect session.
        config: Says which ports the relay may take.
        to: The listener's address and port.

    Yields:
        The relay's address and port, for executors.

    Raises:
        Exception: The server starts none: its Spark is older than 4.0, or it lets no user's code
            run beside its driver.
    """
    carrier = _Tunnel(session, config, to)
    carrier.start()
    try:
        yield carrier.address
    finally:
        carrier.close()


class _Tunnel:
    """Three threads: two ask the server, which blocks; the loop of the third moves the bytes."""

    def __init__(self, session: Any, config: RunConfig, to: tuple[str, int]) -> None:
        self._ask_server = _registered(session)
        source = inspect.getsource(relay)
        host = setting(session, "spark.driver.host")
        where = self._ask_server("start", source, host, config.port_range or (0, 0))
        *address, self._place = json.loads(where)
        self.address: tuple[str, int] = (address[0], address[1])
        self._to = to
        self._links: dict[str, Link] = {}
        self._filling: set[asyncio.Task[None]] = set()
        self._newest = 0
        self._taking = asyncio.Lock()
        self._closing = threading.Event()
        self._moved = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        # Daemons: if the server is gone, a question ends after ten minutes.
        self._threads = [
            threading.Thread(target=target, name="sparkdl-tunnel", daemon=True)
            for target in (self._loop.run_forever, self._hear, self._say)
        ]

    def start(self) -> None:
        for one in self._threads:
            one.start()

    def close(self) -> None:
        self._closing.set()
        self._loop.call_soon_threadsafe(self._moved.set)
        for asking in self._threads[1:]:
            asking.join(_CLOSE_SECONDS)
        self._in_loop(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()

    def _in_loop(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _hear(self) -> None:
        """Asks what has come, until it is over, or the relay has ended for want of questions."""
        heard_at = time.monotonic()
        with suppress(RuntimeError):  # The loop is closed: this one's answer came too late.
            while not self._closing.is_set() and time.monotonic() < heard_at + SILENCE_SECONDS:
                told = self._in_loop(self._tell())
                if self._ask({"links": told, "wait_seconds": _PARKED_SECONDS, "over": False}):
                    heard_at = time.monotonic()
                    time.sleep(_PAUSE_SECONDS)
                else:
                    self._closing.wait(_PARKED_SECONDS)
            if not self._closing.is_set():
                self._in_loop(self._end())

    def _say(self) -> None:
        """Tells at once what is to be told, and at last that it is over."""
        is_over = False
        with suppress(RuntimeError):  # As above.
            while not is_over:
                told = self._in_loop(self._tell_once_moved())
                is_over = self._closing.is_set()
                # If it is lost, the other thread tells it all again.
                self._ask({"links": told, "wait_seconds": 0, "over": is_over})

    def _ask(self, question: dict[str, Any]) -> bool:
        """Asks the relay once; returns whether it has answered."""
        try:
            answer = self._ask_server("ask", self._place, json.dumps(question))
        except Exception:  # It may be a moment's.
            return False
        self._in_loop(self._take(**json.loads(answer)))
        return True

    async def _tell(self) -> dict[str, Any]:
        return {name: link.told() for name, link in self._links.items()}

    async def _tell_once_moved(self) -> dict[str, Any]:
        await self._moved.wait()
        self._moved.clear()
        return await self._tell()

    async def _take(self, number: int, links: dict[str, Any]) -> None:
        """Hands on what has come. An answer that a newer one has overtaken opens and ends none."""
        async with self._taking:
            is_newest = number > self._newest
            if is_newest:
                self._newest = number
                self._links = {name: link for name, link in self._links.items() if name in links}
            for name, told in links.items():
                with suppress(OSError):  # The listener is closed: the run ends.
                    if is_newest and name not in self._links:
                        link = Link(*await asyncio.open_connection(*self._to), self._moved)
                        self._links[name] = link
                        self._filling.add(asyncio.create_task(link.fill()))
                    if name in self._links:
                        self._links[name].take(told)

    async def _end(self) -> None:
        for link in self._links.values():
            link.close()
        for one in self._filling:
            one.cancel()
        await asyncio.gather(*self._filling, return_exceptions=True)


def _registered(session: Any) -> Callable[..., str]:
    """Makes the function known to the session under a name of its own; returns how it is asked."""
    # The types of pyspark 3.5 are others.
    functions: Any = import_module("pyspark.sql.connect.functions")
    frames: Any = import_module("pyspark.sql.connect.dataframe")
    plans: Any = import_module("pyspark.sql.connect.plan")
    name = f"sparkdl_relay_{uuid.uuid4().hex}"
    send_by_value(relay_call)
    session.udtf.register(name, functions.udtf(relay_call.RelayCall))

    def ask(*question: Any) -> str:
        packed = b64encode(json.dumps(question).encode()).decode()
        # session.sql would have the server analyze the query twice.
        query = plans.SQL(f"SELECT * FROM {name}('{packed}')")  # noqa: S608
        return str(frames.DataFrame(query, session).schema[0].metadata["answer"])

    return ask
