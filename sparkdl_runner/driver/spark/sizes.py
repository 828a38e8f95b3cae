"""How large rank 0's value may be for Spark to carry it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

# A task's result ends at 2 GiB; some of that is left to a rank's notes and last output.
_MOST_BYTES = (1 << 31) - (1 << 20)
# A JVM holds a result as Python wrote it, as the task's value and serialized. In one that is both
# driver and executor, a sixth of the heap is too much.
_SHARE_OF_HEAP = 8


def most_result_bytes(context: SparkContext) -> int:
    """The largest value that neither Spark's settings nor its memory refuse.

    A JVM that runs out of memory by a result ends its executor or the application, or leaves the
    job waiting for ever, so a value must be refused before.
    """
    limits = [_MOST_BYTES]
    scala_context: Any = context._jsc.sc()
    jvm: Any = context._jvm
    with suppress(Exception):  # Some notebooks' JVMs forbid these.
        limits.append(scala_context.conf().getSizeAsBytes("spark.driver.maxResultSize", "1g"))
    with suppress(Exception):
        limits.append(jvm.java.lang.Runtime.getRuntime().maxMemory() // _SHARE_OF_HEAP)
        if not scala_context.isLocal():
            limits.append((scala_context.executorMemory() << 20) // _SHARE_OF_HEAP)
    return min(limit for limit in limits if limit > 0)  # 0 is no limit to Spark.
