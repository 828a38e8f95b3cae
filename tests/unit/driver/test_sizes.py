"""The largest value of rank 0 that Spark's settings and memory allow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.driver.spark.result_size import most_result_bytes

GIB, MIB = 1 << 30, 1 << 20


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
    def known(value: int | None) -> int:
        if value is None:
            raise RuntimeError("this notebook's JVM forbids it")
        return value

    def setting_of(name: str, default: str) -> int:
        assert (name, default) == ("spark.driver.maxResultSize", "1g")
        return known(setting)

    scala_context = SimpleNamespace(
        conf=lambda: SimpleNamespace(getSizeAsBytes=setting_of),
        isLocal=lambda: is_local,
        executorMemory=lambda: known(executor_mib),
    )
    runtime = SimpleNamespace(
        getRuntime=lambda: SimpleNamespace(maxMemory=lambda: known(driver_heap))
    )
    java = SimpleNamespace(lang=SimpleNamespace(Runtime=runtime))
    context: Any = SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: scala_context), _jvm=SimpleNamespace(java=java)
    )
    assert most_result_bytes(context) == most
