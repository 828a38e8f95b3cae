"""The client's end of a relay: what agents send there arrives at a listener of this process."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.connect import relay, relay_call
from sparkdl_runner.launch.driver.connect.by_value import by_value
from sparkdl_runner.launch.driver.connect.relay import Link
from sparkdl_runner.launch.driver.connect.session import setting

# Between two questions, while something comes, and at most.
_SOON_SECONDS = 0.05
_LATER_SECONDS = 1.0
_CLOSE_SECONDS = 5.0


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
    def __init__(self, session: Any, config: RunConfig, to: tuple[str, int]) -> None:
        self._ask_server = _registered(session)
        source = inspect.getsource(relay)
        host = setting(session, "spark.driver.host")
        where = self._ask_server("start", source, host, config.port_range or (0, 0))
        *address, self._place = json.loads(where)
        self.address: tuple[str, int] = (address[0], address[1])
        self._to = to
        self._links: dict[str, Link] = {}
        self._is_closing = False
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._carry()), name="sparkdl-tunnel", daemon=True
        )

    def start(self) -> None:
        self._loop_is_there = threading.Event()
        self._thread.start()
        self._loop_is_there.wait()

    def close(self) -> None:
        self._is_closing = True
        with suppress(RuntimeError):  # Its loop has ended.
            self._loop.call_soon_threadsafe(self._moved.set)
        self._thread.join(_CLOSE_SECONDS)

    async def _carry(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._loop_is_there.set()
        pause = _SOON_SECONDS
        heard_at = time.monotonic()
        filling = set()
        try:
            # A relay that is not asked for so long has ended.
            while time.monotonic() - heard_at < relay.SILENCE_SECONDS:
                is_last = self._is_closing
                self._moved.clear()
                links = {name: link.told() for name, link in self._links.items()}
                question = json.dumps({"links": links, "over": is_last})
                try:
                    answer = await asyncio.to_thread(self._ask_server, "ask", self._place, question)
                except Exception:
                    if is_last:
                        return
                    await asyncio.sleep(_LATER_SECONDS)
                    continue
                heard_at = time.monotonic()
                if is_last:
                    return
                told = json.loads(answer)
                self._links = {name: link for name, link in self._links.items() if name in told}
                has_come = False
                for name, one in told.items():
                    if name not in self._links:
                        reader, writer = await asyncio.open_connection(*self._to)
                        self._links[name] = Link(reader, writer, self._moved)
                        filling.add(asyncio.create_task(self._links[name].fill()))
                    has_come |= self._links[name].take(one)
                pause = _SOON_SECONDS if has_come else min(2 * pause, _LATER_SECONDS)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._moved.wait(), pause)
        finally:
            for link in self._links.values():
                link.close()
            for one in filling:
                one.cancel()


def _registered(session: Any) -> Any:
    """Makes the function known to the session under a name of its own; returns how it is asked."""
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.functions import udtf
    from pyspark.sql.connect.plan import SQL

    name = f"sparkdl_relay_{uuid.uuid4().hex}"
    with by_value(relay_call):
        session.udtf.register(name, udtf(relay_call.RelayCall))

    def ask(*question: Any) -> str:
        packed = b64encode(json.dumps(question).encode()).decode()
        # What session.sql gives is analyzed twice.
        asked = DataFrame(SQL(f"SELECT * FROM {name}('{packed}')"), session)  # noqa: S608
        return str(asked.schema[0].metadata["answer"])

    return ask
