"""The recipes of docs/strategies.md train as plain DDP and one process do, and go on anywhere."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import strategy_functions as functions
import torch
from safetensors import safe_open

from docs_blocks import ROOT, blocks_of
from sparkdl_runner import DistributedRunner

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

# Sums in another order; seen are 5e-7.
FLOAT_NOISE = 1e-5


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page's blocks define; the last one, which starts ranks, is left out."""
    blocks = [one for one in blocks_of(ROOT / "docs/strategies.md") if one.kind == "python"]
    names: dict[str, Any] = {"__name__": "page_of_strategies"}
    exec("".join(one.text for one in blocks[:-1]), names)
    return names


@pytest.fixture(scope="module")
def recipes(page):
    exact = {
        "zero1": page["zero1"],
        "fsdp2": partial(page["fsdp2"], torch.float32),
        "tensor": page["tensor_parallel"],
        "1f1b": page["pipeline"],
        "2d": page["two_dimensions"],
    }
    near = {
        "ddp, bf16, accumulated, compiled": page["ddp_bf16_accumulated"],
        "fsdp2, bf16": page["fsdp2"],
        "fp16": page["with_hook"],
        "powersgd": partial(page["with_hook"], "powersgd"),
    }
    return exact, near


def run(ranks: int, calls: dict[str, Any]) -> dict[str, Any]:
    return DistributedRunner(num_proc=-ranks, backend="torch").run(functions.in_turn, calls)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("strategies")


@pytest.fixture(scope="module")
def four(page, recipes, folder):
    """What four ranks find; their checkpoints of step 20 stay in the folder."""
    exact, near = recipes
    calls: dict[str, Any] = {
        "alone": (functions.one_process, (page, 50)),
        "ddp": (functions.interrupted, (page, page["ddp"], f"{folder}/ddp", 50)),
        "ddp to 20": (functions.interrupted, (page, page["ddp"], f"{folder}/ddp20", 20)),
    }
    for name, recipe in exact.items():
        parts = (10, 20) if name in ("zero1", "fsdp2") else (20,)  # Others go on elsewhere.
        calls[name] = functions.interrupted, (page, recipe, f"{folder}/{name}", *parts)
    gpipe = partial(page["pipeline"], page["ScheduleGPipe"])
    for name, recipe in {**near, "gpipe": gpipe}.items():
        calls[name] = functions.interrupted, (page, recipe, f"{folder}/{name}", 6)
    fsdp2 = exact["fsdp2"]
    calls["fsdp2 to the end"] = functions.on_a_copy, (page, fsdp2, f"{folder}/fsdp2", 50)
    calls["ddp by 2d"] = functions.on_a_copy, (page, exact["2d"], f"{folder}/ddp20", 30)
    calls["2d by fsdp2"] = functions.on_a_copy, (page, fsdp2, f"{folder}/2d", 30)
    local = page["post_local_sgd"]
    calls["post-local"] = functions.interrupted, (page, local, f"{folder}/local", 10, 15)
    calls["local"] = functions.local_sgd, (page, 6)
    calls["uneven"] = functions.uneven, (page,)
    calls["memory"] = functions.memory, (fsdp2,)
    calls["memory of ddp"] = functions.memory, (page["ddp"],)
    calls["told"] = functions.saved_as_parts, (page, f"{folder}/parts", f"{folder}/1f1b")
    calls["context"] = functions.context_parallel_without_a_gpu, ()
    return run(4, calls)


@pytest.fixture(scope="module")
def two(page, recipes, folder, four):
    exact, _ = recipes
    calls = {
        name: (functions.on_a_copy, (page, recipe, f"{folder}/{name}", 30))
        for name, recipe in exact.items()
        if name != "tensor"
    }
    fsdp2 = exact["fsdp2"]
    calls["ddp by fsdp2"] = functions.on_a_copy, (page, fsdp2, f"{folder}/ddp20", 30)
    calls["fsdp2 to 50"] = functions.interrupted, (page, fsdp2, f"{folder}/of-two", 50)
    return run(2, {**calls, "memory": (functions.memory, (fsdp2,))})


def same(found: dict[int, float], wanted: dict[int, float], noise: float = FLOAT_NOISE) -> None:
    assert found == {step: pytest.approx(wanted[step], rel=noise) for step in found}


def test_four_ranks_train_as_one_process(four):
    same(four["ddp"], four["alone"])


def test_each_strategy_trains_as_ddp(four, recipes):
    for name in recipes[0]:
        assert len(four[name]) == 20, name
        same(four[name], four["ddp"])
    same(four["gpipe"], four["ddp"])


def test_fifty_steps_of_fsdp2_have_ddps_losses(two, four):
    for losses in (two["fsdp2 to 50"], four["fsdp2"] | four["fsdp2 to the end"]):
        assert len(losses) == 50
        same(losses, four["ddp"])


def test_what_rounds_or_compresses_stays_near(four, recipes):
    for name in recipes[1]:
        same(four[name], four["ddp"], noise=0.03)
        with pytest.raises(AssertionError):
            same(four[name], four["ddp"], noise=1e-7)  # It does something.


def test_a_checkpoint_of_another_strategy_is_restored(four, two):
    for found in (four["2d by fsdp2"], four["ddp by 2d"], two["ddp by fsdp2"]):
        assert list(found) == list(range(21, 31))
        same(found, four["ddp"])


def test_two_ranks_go_on_where_four_stopped(four, two, recipes):
    for name in recipes[0].keys() - {"tensor"}:
        assert list(two[name]) == list(range(21, 31)), name
        same(two[name], four["ddp"])


@pytest.mark.parametrize("saved", ["zero1", "fsdp2", "tensor", "1f1b", "2d"])
def test_one_process_goes_on_where_four_ranks_stopped(page, folder, four, saved):
    losses = functions.one_process(page, 30, f"{folder}/{saved}")
    assert list(losses) == list(range(21, 31))
    same(losses, four["ddp"])


def test_each_part_is_written_once(four, folder):
    for name in ("zero1", "fsdp2", "tensor", "1f1b", "2d"):
        files = list(folder.glob(f"{name}/step-20/attempt-*/sharded/rank-*.safetensors"))
        keys = [set(safe_open(file, "pt").keys()) for file in files]
        assert len(keys) == 4
        assert sum(map(len, keys)) == len(set().union(*keys)), name


def test_the_memory_of_fsdp2_is_divided_by_the_ranks(two, four):
    (whole,) = set(four["memory of ddp"])
    for ranks in (two["memory"], four["memory"]):
        assert max(ranks) <= 1.1 * whole / len(ranks)


def test_hosts_differ_between_two_averages_of_post_local_sgd(four):
    equal, hosts_differ = [True] * 4, [True, True, False, False]
    assert four["local"] == [equal, equal, equal, hosts_differ, equal, hosts_differ]
    assert list(four["post-local"]) == list(range(1, 16))


def test_uneven_inputs_train_as_one_process_on_the_same_rows(four):
    found = four["uneven"]
    assert found["seen"] == 2046
    assert found["last"] == [1, 1, 0, 0]
    assert found["apart"] < 1e-6


def test_parts_that_would_be_lost_are_named(four):
    first, *others = four["told"]
    assert len(first) == 1
    for rank, told in enumerate(others, start=1):
        warning, refusal = told
        assert warning.startswith(f"Rank {rank}'s 0.bias, 0.weight differ from those of a lower")
        assert "2 unexpected in the checkpoint: layers.last.bias, layers.last.weight" in refusal


def test_context_parallel_without_a_gpu_is_answered_with_what_to_do(four):
    assert "kernels that only GPUs have, and this rank computes on the CPU" in four["context"]
