"""``plan_memory`` says what ranks really need: within 15 % of the kernel's count."""

from __future__ import annotations

import memory_functions as functions
import pytest

from sparkdl_runner import DistributedRunner, plan_memory

pytestmark = [pytest.mark.integration, pytest.mark.one_lane, pytest.mark.timeout(420)]


def planned(name: str, ranks: int) -> dict:
    return plan_memory(
        functions.MODELS[name],
        functions.batch_of(name),
        num_proc=-ranks,
        loss=functions.loss_of,
    ).by_strategy


def test_what_ranks_need_is_what_was_planned():
    measured = DistributedRunner(num_proc=-2, backend="torch").run(functions.measured_bytes)
    for name in functions.MODELS:
        plan = planned(name, 2)
        # One rank of a tensor-parallel model is one process.
        expected = {"alone": planned(name, 1)["tensor"].peak_bytes}
        expected |= {one: plan[one].peak_bytes for one in ("ddp", "zero1", "fsdp2")}
        for strategy, needed in expected.items():
            found = measured[name, strategy]
            print(f"{name} {strategy}: planned {needed:,}, measured {found:,} {needed / found:.2f}")
            assert needed == pytest.approx(found, rel=0.15), (name, strategy)
