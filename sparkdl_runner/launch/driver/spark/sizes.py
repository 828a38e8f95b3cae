"""How large a function and rank 0's value may be for Spark to carry them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sparkdl_runner.errors import LaunchError

if TYPE_CHECKING:
    from pyspark import SparkContext

# A task's result ends at 2 GiB; some of that is left to a rank's notes and last output.
_MOST_BYTES = (1 << 31) - (1 << 20)
# A JVM holds a result as Python wrote it, as the task's value and serialized. In one that is both
# driver and executor, a sixth of the heap is too much.
_SHARE_OF_HEAP = 8
# Of a large function so many pieces of so many bytes are compressed, to see how far it shrinks.
_PIECES, _PIECE_BYTES = 64, 16 << 10

LESS_TO_CARRY = (
    "Take large values out of the arguments, and out of what the function refers to: give ranks a "
    "path or a converted DataFrame to read, or raise {setting} before the session starts."
)


def refuse_too_large_function(context: SparkContext, packed: bytes) -> None:
    """Refuses a function that fits no JVM's memory, before any slot is waited for.

    Spark holds all of a broadcast, compressed, on the heap of the driver and of each executor. An
    executor that has no room for it ends.

    Args:
        context: The application's context.
        packed: The function with its arguments.

    Raises:
        LaunchError: It is larger than a heap, also compressed.
    """
    for setting, heap_bytes in _heaps(context):
        if len(packed) > heap_bytes and _carried_bytes(context, packed) > heap_bytes:
            raise LaunchError(
                f"The function and its arguments take {len(packed) / 1e6:,.0f} MB pickled, and "
                f"{setting} gives Spark {heap_bytes / 1e6:,.0f} MB, which cannot hold them. "
                + LESS_TO_CARRY.format(setting=setting)
            )


def _carried_bytes(context: SparkContext, packed: bytes) -> float:
    """About how large Spark makes it, at least: zlib compresses better than Spark does."""
    with suppress(Exception):
        if not context._jsc.sc().conf().getBoolean("spark.broadcast.compress", True):
            return len(packed)
    step = max(1, len(packed) // _PIECES)
    pieces = [packed[at : at + _PIECE_BYTES] for at in range(0, len(packed), step)]
    ratio = sum(len(zlib.compress(piece, 1)) for piece in pieces) / sum(map(len, pieces))
    return len(packed) * min(1.0, ratio)


def _heaps(context: SparkContext) -> Iterator[tuple[str, int]]:
    """The heap of each kind of JVM in bytes, as far as it is known, by the setting of its size."""
    scala_context: Any = context._jsc.sc()
    jvm: Any = context._jvm
    with suppress(Exception):  # Some notebooks' JVMs forbid these.
        yield "spark.driver.memory", jvm.java.lang.Runtime.getRuntime().maxMemory()
        if not scala_context.isLocal():
            yield "spark.executor.memory", scala_context.executorMemory() << 20


def most_result_bytes(context: SparkContext) -> int:
    """The largest value that neither Spark's settings nor its memory refuse.

    A JVM that runs out of memory by a result ends its executor or the application, or leaves the
    job waiting for ever, so a value must be refused before.
    """
    limits = [_MOST_BYTES]
    configuration: Any = context._jsc.sc().conf
    with suppress(Exception):  # Some notebooks' JVMs forbid this.
        limits.append(configuration().getSizeAsBytes("spark.driver.maxResultSize", "1g"))
    limits += [heap_bytes // _SHARE_OF_HEAP for _, heap_bytes in _heaps(context)]
    return min(limit for limit in limits if limit > 0)  # 0 is no limit to Spark.
