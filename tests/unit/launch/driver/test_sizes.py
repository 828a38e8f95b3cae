"""The largest function, and value of rank 0, that Spark's settings and memory allow."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.spark.sizes import most_result_bytes, refuse_too_large_function

GIB, MIB = 1 << 30, 1 << 20


def spark_with(
    setting: int | None,
    driver_heap: int | None,
    executor_mib: int | None,
    is_local: bool,
    *,
    compresses: bool = True,
) -> Any:
    def known(value: int | None) -> int:
        if value is None:
            raise RuntimeError("this notebook's JVM forbids it")
        return value

    def setting_of(name: str, default: str) -> int:
        assert (name, default) == ("spark.driver.maxResultSize", "1g")
        return known(setting)

    scala_context = SimpleNamespace(
        conf=lambda: SimpleNamespace(
            getSizeAsBytes=setting_of, getBoolean=lambda name, default: compresses
        ),
        isLocal=lambda: is_local,
        executorMemory=lambda: known(executor_mib),
    )
    runtime = SimpleNamespace(
        getRuntime=lambda: SimpleNamespace(maxMemory=lambda: known(driver_heap))
    )
    java = SimpleNamespace(lang=SimpleNamespace(Runtime=runtime))
    return SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: scala_context), _jvm=SimpleNamespace(java=java)
    )


@pytest.mark.parametrize(
    ("setting", "driver_heap", "executor_mib", "is_local", "most"),
    [
        (GIB, 64 * GIB, 65536, False, GIB),
        (0, 64 * GIB, 65536, False, 2 * GIB - MIB),
        (GIB, 4 * GIB, 65536, False, GIB // 2),
        (GIB, 64 * GIB, 4096, False, GIB // 2),
        (GIB, 64 * GIB, 4096, True, GIB),
        (None, None, None, False, 2 * GIB - MIB),
    ],
)
def test_the_smallest_limit_counts(
    setting: int | None,
    driver_heap: int | None,
    executor_mib: int | None,
    is_local: bool,
    most: int,
) -> None:
    context = spark_with(setting, driver_heap, executor_mib, is_local)
    assert most_result_bytes(context) == most


RANDOM, ZEROS = random.Random(0).randbytes(3 * MIB), bytes(3 * MIB)


@pytest.mark.parametrize(
    ("packed", "driver_heap", "executor_mib", "is_local", "refused_by"),
    [
        (RANDOM, 4 * MIB, 4, False, None),
        (RANDOM, 2 * MIB, 4, False, "spark.driver.memory"),
        (RANDOM, 2 * MIB, 4, True, "spark.driver.memory"),
        (RANDOM, 4 * MIB, 2, False, "spark.executor.memory"),
        (RANDOM, 4 * MIB, 2, True, None),
        (RANDOM, None, None, False, None),
        # Spark compresses it.
        (ZEROS, 2 * MIB, 2, False, None),
        (ZEROS[MIB:] + RANDOM[MIB:], 3 * MIB, 3, False, None),
        (ZEROS[2 * MIB :] + RANDOM, 2 * MIB, 2, False, "spark.driver.memory"),
    ],
)
def test_a_function_that_fits_no_heap_is_refused(
    packed: bytes,
    driver_heap: int | None,
    executor_mib: int | None,
    is_local: bool,
    refused_by: str | None,
) -> None:
    context = spark_with(GIB, driver_heap, executor_mib, is_local)
    if refused_by is None:
        refuse_too_large_function(context, packed)
        return
    told = rf"take [34] MB pickled, and {refused_by} gives Spark 2 MB, .* raise {refused_by} before"
    with pytest.raises(LaunchError, match=told):
        refuse_too_large_function(context, packed)


def test_a_function_is_not_compressed_if_spark_does_not() -> None:
    context = spark_with(GIB, 2 * MIB, 2, False, compresses=False)
    with pytest.raises(LaunchError, match="cannot hold them"):
        refuse_too_large_function(context, ZEROS)
