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
from sparkdl_runner.launch.driver.connect.relay import Link
from sparkdl_runner.launch.driver.connect.session import setting

# Between two questions, while something comes, and at most.
_SOON_SECONDS = 0.05
_LATER_SECONDS = 1.0
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
    """Two threads: one asks the server, which blocks; the loop of the other moves the bytes."""

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
        self._is_closing = False
        self._moved = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        # Daemons: if the server is gone, a question ends after ten minutes.
        self._threads = [
            threading.Thread(target=target, name="sparkdl-tunnel", daemon=True)
            for target in (self._loop.run_forever, self._ask)
        ]

    def start(self) -> None:
        for one in self._threads:
            one.start()

    def close(self) -> None:
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._moved.set)
        self._threads[1].join(_CLOSE_SECONDS)
        self._in_loop(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()

    def _in_loop(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _ask(self) -> None:
        """Asks again and again, until it is over, or the relay has ended for want of questions."""
        pause = _SOON_SECONDS
        heard_at = time.monotonic()
        with suppress(RuntimeError):  # The loop is closed: this one's answer came too late.
            while time.monotonic() - heard_at < relay.SILENCE_SECONDS:
                is_last = self._is_closing
                question = json.dumps({"links": self._in_loop(self._tell()), "over": is_last})
                try:
                    answer = self._ask_server("ask", self._place, question)
                    heard_at = time.monotonic()
                except Exception:  # It may be a moment's. All that was said is said again.
                    answer = None
                if is_last:
                    return
                has_come = answer is not None and self._in_loop(self._take(json.loads(answer)))
                pause = _SOON_SECONDS if has_come else min(2 * pause, _LATER_SECONDS)
                self._in_loop(self._wait(pause))
            self._in_loop(self._end())

    async def _tell(self) -> dict[str, Any]:
        self._moved.clear()
        return {name: link.told() for name, link in self._links.items()}

    async def _take(self, told: dict[str, Any]) -> bool:
        """Hands on what has come; returns whether that was anything."""
        self._links = {name: link for name, link in self._links.items() if name in told}
        has_come = False
        for name, one in told.items():
            with suppress(OSError):  # The listener is closed: the run ends.
                if name not in self._links:
                    link = Link(*await asyncio.open_connection(*self._to), self._moved)
                    self._links[name] = link
                    self._filling.add(asyncio.create_task(link.fill()))
                has_come |= self._links[name].take(one)
        return has_come

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), seconds)

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
