"""``plan_memory`` says what ranks really need: within 15 % of the kernel's count."""

from __future__ import annotations

from functools import cache

import memory_functions as functions
import pytest

from sparkdl_runner import DistributedRunner, plan_memory

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


@cache
def planned(name: str, ranks: int, precision: str = "fp32") -> dict:
    return plan_memory(
        functions.MODELS[name],
        functions.batch_of(name),
        num_proc=-ranks,
        loss=functions.loss_of,
        precision=precision,
    ).by_strategy


def expected(name: str, strategy: str, precision: str) -> int:
    if strategy == "alone":  # One rank of a tensor-parallel model is one process.
        return planned(name, 1, precision)["tensor"].peak_bytes
    return planned(name, 2, precision)[strategy].peak_bytes


def test_what_ranks_need_is_what_was_planned():
    measured = DistributedRunner(num_proc=-2, backend="torch").run(functions.measured_bytes)
    off = {}
    for (name, case), found in measured.items():
        strategy, _, precision = case.partition(", ")
        needed = expected(name, strategy, precision or "fp32")
        print(f"{name} {case}: planned {needed:,}, measured {found:,} {needed / found:.2f}")
        if needed != pytest.approx(found, rel=0.15):
            off[name, case] = needed / found
    assert not off
