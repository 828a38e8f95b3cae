"""A large function, lent to the executors for as long as an attempt lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sparkdl_runner.launch.driver.spark import failure

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.broadcast import Broadcast

# A smaller one travels within its task.
LARGE_BYTES = 1 << 20


@contextmanager
def lent(context: SparkContext, function: bytes) -> Iterator[Broadcast[bytes] | None]:
    """Broadcasts a large function, and takes it back at the end: until then heaps hold it.

    Spark by itself broadcasts a task of that size, and holds it until the JVM collects it.

    Args:
        context: The application's.
        function: The function with its arguments, pickled.

    Yields:
        The broadcast; None if the function is not large.

    Raises:
        LaunchError: The driver's JVM has no room for it.
    """
    if len(function) < LARGE_BYTES:
        yield None
        return
    try:
        broadcast = context.broadcast(function)
    except Exception as error:
        size, python = len(function), context.pythonExec
        raise failure.explain(error, python=python, function_bytes=size) from None
    try:
        yield broadcast
    finally:
        with suppress(Exception):  # The JVM may be gone.
            broadcast.destroy()
