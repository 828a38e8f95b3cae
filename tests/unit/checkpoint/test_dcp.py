"""torch's distributed checkpoint over this package's storage; ranks are threads of torch's own."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import (
    DefaultSavePlanner,
    _EmptyStateDictLoadPlanner,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed import multi_threaded_pg

from sparkdl_runner.checkpoint import Checkpoint, CheckpointManager
from sparkdl_runner.checkpoint.dcp import DcpReader, DcpWriter, load_newest
from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage
from sparkdl_runner.checkpoint.directory.manifest import Name

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
WHOLE = torch.arange(70.0).reshape(10, 7)
DEADLINE_SECONDS = 60


def as_ranks(size: int, function: Callable[[int], Any]) -> list[Any]:
    """What each rank returned, or the error that it raised."""
    group = torch._C._distributed_c10d  # type: ignore[attr-defined]
    answers: list[Any] = [None] * size
    store = dist.HashStore()

    def work(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=size, store=store)
        try:
            answers[rank] = function(rank)
        except BaseException as error:
            answers[rank] = error
        dist.destroy_process_group()

    multi_threaded_pg._install_threaded_pg()
    group._set_thread_isolation_mode(True)
    try:
        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive(), "a rank hangs"
    finally:
        group._set_thread_isolation_mode(False)
        multi_threaded_pg._uninstall_threaded_pg()
    return answers


def state_of(shape: tuple[int, ...], whole: torch.Tensor, number: float) -> dict[str, Any]:
    """A sharded tensor, one that all have, and values."""
    mesh = init_device_mesh("cpu", shape)
    placements = [Shard(0)] if len(shape) == 1 else [Replicate(), Shard(1)]
    return {
        "model": {"w.x": distribute_tensor(whole.clone(), mesh, placements), "b": whole[0] + 1},
        "optim": {"lr": number, "betas": (0.9, None), "groups": [{"on": number > 0}]},
    }


def saved_by(
    size: int, folder: Path, step: int = 1, writer: Callable[[], DcpWriter] | None = None
) -> list[Any]:
    def save(rank: int) -> Any:
        own = writer() if writer else DcpWriter(folder, retry_seconds=0)
        state = state_of((size,), WHOLE, 0.5)
        return dcp.save(state, storage_writer=own, checkpoint_id=f"step-{step}")

    return as_ranks(size, save)


def read_by(shape: tuple[int, ...], folder: Path) -> list[Any]:
    def load(rank: int) -> Any:
        state = state_of(shape, torch.zeros(10, 7), 0.0)
        step = load_newest(state, folder)
        return step, state["model"]["w.x"].full_tensor(), state["model"]["b"], state["optim"]

    return as_ranks(torch.Size(shape).numel(), load)


def save_alone(value: Any, folder: Path, step: int, writer: DcpWriter | None = None) -> None:
    """Saves as one process."""
    writer = writer or DcpWriter(folder, retry_seconds=0)
    dcp.save({"a": value}, storage_writer=writer, checkpoint_id=f"step-{step}")


def test_any_number_of_ranks_and_another_mesh_read_what_two_saved(in_memory):
    saved_by(2, in_memory)
    for shape in ((1,), (3,), (4,), (2, 2)):
        for step, whole, b, optim in read_by(shape, in_memory):
            assert step == 1
            assert torch.equal(whole, WHOLE)
            assert torch.equal(b, WHOLE[0] + 1)
            assert optim == {"lr": 0.5, "betas": (0.9, None), "groups": [{"on": True}]}


def test_it_is_a_checkpoint_like_any_other_and_holds_no_pickle(in_memory):
    saved_by(2, in_memory)
    files = {str(path.relative_to(in_memory)) for path in in_memory.rglob("*") if path.is_file()}
    names = ["manifest", "metadata", "rank-0", "rank-0", "rank-1", "rank-1"]
    stems = sorted(Path(name).stem for name in files if name.startswith("step-1/attempt-0/"))
    # Which rank writes what both have is for DCP to say.
    assert [stem for stem in stems if not stem.startswith("whole-")] == names
    assert {Path(name).suffix for name in files if "step-" in name} == {".json", ".safetensors"}
    assert Checkpoint.load(in_memory).model["w.x"].equal(WHOLE)
    with CheckpointManager(in_memory) as checkpoints:
        assert [checkpoints.verify(name) for name in checkpoints.list()] == [[]]
    state: dict[str, Any] = {}
    # As torch's own converters read a checkpoint without a model.
    _load_state_dict(
        state, DcpReader(in_memory), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    assert state["model"]["w.x"].equal(WHOLE)
    assert state["optim"]["groups"] == [{"on": True}]


def trained(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (seed + 1))
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_manager_and_dcp_read_each_others(in_memory):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = trained(0)
    of_model, of_optimizer = get_state_dict(model, optimizer, options=options)
    state = {"model": of_model, "optimizer": of_optimizer}
    dcp.save(state, storage_writer=DcpWriter(in_memory / "dcp"), checkpoint_id="step-4")
    again, its = trained(1)
    with CheckpointManager(in_memory / "dcp") as checkpoints:
        assert checkpoints.restore(again, its).step == 4
    assert torch.equal(again.weight, model.weight)
    assert str(its.state_dict()) == str(optimizer.state_dict())

    with CheckpointManager(in_memory / "own", sharded=True) as checkpoints:
        checkpoints.save(7, model, optimizer)
    other, its = trained(2)
    of_model, of_optimizer = get_state_dict(other, its, options=options)
    found = {"model": of_model, "optimizer": of_optimizer}
    assert load_newest(found, in_memory / "own") == 7
    assert torch.equal(found["model"]["weight"], model.weight)
    assert found["optimizer"]["param_groups.weight.lr"] == 0.1


def test_what_only_code_could_load_is_refused_by_name(in_memory):
    with pytest.raises(dcp.CheckpointException, match=r"\['a'\] is a .*object, which a checkpoint"):
        save_alone(object(), in_memory, 1)

    class Doubling(DefaultSavePlanner):
        def transform_object(self, *given):
            return super().transform_object(*given)

    writer = DcpWriter(in_memory)
    for value, refused in (({1, 2}, False), (threading.Event, True)):
        state = {"set": value, "t": torch.ones(2)}
        call = {"planner": Doubling(), "checkpoint_id": f"step-{2 + refused}"}
        if refused:
            with pytest.raises(dcp.CheckpointException, match="set is nothing that a checkpoint"):
                dcp.save(state, storage_writer=writer, **call)
        else:
            dcp.save(state, storage_writer=writer, **call)
    found = {"set": None, "t": torch.zeros(2)}
    assert load_newest(found, in_memory) == 2
    assert found["set"] == {1, 2}


def test_a_step_has_to_be_named_and_is_saved_once(in_memory):
    writer = DcpWriter(in_memory)
    with pytest.raises(dcp.CheckpointException, match=r"give checkpoint_id='step-N'"):
        dcp.save({"a": 1}, storage_writer=writer)
    with pytest.raises(ValueError, match="'last' names no step; expected one that ends in step-N"):
        writer.reset("last")
    save_alone(1, in_memory, 3, writer)
    with pytest.raises(dcp.CheckpointException, match="was committed before: save a step once"):
        save_alone(2, in_memory, 3, writer)
    save_alone(4, in_memory, 4, writer)
    state = {"a": 0}
    dcp.load(state, storage_reader=DcpReader(in_memory), checkpoint_id="any/step-3")
    assert state == {"a": 1}
    with pytest.raises(dcp.CheckpointException, match="There is no checkpoint of step 5 in"):
        dcp.load(state, storage_reader=DcpReader(in_memory), checkpoint_id="step-5")
    assert load_newest(state, in_memory / "nothing") is None


def test_an_earlier_attempt_that_wakes_up_commits_nothing(in_memory):
    zombie, later = DcpWriter(in_memory), DcpWriter(in_memory)
    save_alone(1, in_memory, 1, zombie)
    save_alone(2, in_memory, 1, later)
    with pytest.raises(
        dcp.CheckpointException, match=r"Attempt 1 has begun in .*, so that attempt 0"
    ):
        save_alone(3, in_memory, 2, zombie)
    state = {"a": 0}
    assert (load_newest(state, in_memory), state["a"]) == (1, 2)


def _kill_at(fatal: int) -> None:
    """Kills this process at one of the moments at which it flushes."""
    flush, numbers = os.fsync, itertools.count(1)

    def flush_or_die(descriptor: int) -> None:
        if next(numbers) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(descriptor)

    os.fsync = flush_or_die


def test_a_writer_that_is_killed_leaves_the_checkpoint_before(in_memory):
    save_alone(torch.ones(3), in_memory, 1)
    for fatal in range(1, 40):
        child = os.fork()
        if child == 0:
            _kill_at(fatal)
            save_alone(torch.full((3,), 2.0), in_memory, 2)
            os._exit(0)
        was_killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        state = {"a": torch.zeros(3)}
        step = load_newest(state, in_memory)
        assert torch.equal(state["a"], torch.full((3,), float(step)))
        if not was_killed:
            break
        # The manifest counts once it is whole; only its own last flushes come after.
        assert step == 1 or list(in_memory.glob("step-2/attempt-*/manifest.json"))
    assert step == 2
    assert fatal > 5


def test_damage_is_named_and_the_checkpoint_before_is_taken_by_all(in_memory):
    for step in (1, 2, 3):
        saved_by(2, in_memory, step)
    (in_memory / "step-3/attempt-2/sharded/rank-1.safetensors").write_bytes(b"?")
    manifest = in_memory / "step-2/attempt-1/manifest.json"
    content = manifest.read_bytes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        manifest.write_bytes(content[:-9])
        assert {answer[0] for answer in read_by((2,), in_memory)} == {1}
        manifest.write_bytes(content)
        assert {answer[0] for answer in read_by((3,), in_memory)} == {2}
    told = " ".join(str(one.message) for one in caught)
    assert "step-3/attempt-2 is not whole: sharded/rank-1.safetensors has 1 bytes" in told
    assert "step-2/attempt-1 is not whole: manifest.json is damaged" in told

    for path in in_memory.rglob("manifest.json"):
        path.write_bytes(b"?")
    with pytest.warns(UserWarning, match="The one before is loaded"):
        (answer,) = read_by((1,), in_memory)
    assert "There is no other checkpoint in" in str(answer)


def test_a_rank_that_cannot_write_is_told_on_all_and_nothing_is_committed(in_memory, monkeypatch):
    saved_by(2, in_memory, 1)
    write = LocalStorage.write

    def full(self: LocalStorage, name: str, content: bytes) -> None:
        if name.startswith("step-2/") and name.endswith("sharded/rank-1.safetensors"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, name, content)

    writers = {}

    def same_writer() -> DcpWriter:
        return writers.setdefault(dist.get_rank(), DcpWriter(in_memory, retry_seconds=0))

    monkeypatch.setattr(LocalStorage, "write", full)
    for answer in saved_by(2, in_memory, 2, same_writer):
        assert isinstance(answer, dcp.CheckpointException)
        (cause,) = [error for error, _ in answer.failures.values()]
        assert re.fullmatch(
            r"Rank 1 on host \S+ could not save the checkpoint of step 2 into file://\S+: "
            r"no space is left there: .*No space left on device\. "
            r"The checkpoint of step 1 is still good \(\S+/step-1/attempt-0\)\.",
            str(cause),
        )
    assert {answer[0] for answer in read_by((2,), in_memory)} == {1}
    # Once there is room, the same step can be saved.
    monkeypatch.undo()
    assert not [e for e in saved_by(2, in_memory, 2, same_writer) if isinstance(e, BaseException)]
    assert {answer[0] for answer in read_by((2,), in_memory)} == {2}


def test_ranks_that_find_different_checkpoints_read_none(in_memory):
    save_alone(1, in_memory, 1)
    save_alone(2, in_memory, 2)

    class Late(DcpReader):
        def read_metadata(self, *args, **kwargs):
            self.passed_over = {Name(step=2, attempt=1)} if dist.get_rank() else set()
            return super().read_metadata(*args, **kwargs)

    for error in as_ranks(2, lambda _: dcp.load({"a": 0}, storage_reader=Late(in_memory))):
        assert "find step-1/attempt-0 and step-2/attempt-1 as the newest" in str(error)


def test_a_planner_that_remembers_its_plan_is_for_one_writer(in_memory):
    def save(writer: DcpWriter, step: int) -> None:
        planner = DefaultSavePlanner(enable_plan_caching=True)
        state = {"a": torch.full((2,), float(step))}
        dcp.save(state, storage_writer=writer, checkpoint_id=f"step-{step}", planner=planner)

    writer = DcpWriter(in_memory)
    for step in (1, 2, 3):
        save(writer, step)
    state = {"a": torch.zeros(2)}
    assert load_newest(state, in_memory) == 3
    assert state["a"].tolist() == [3.0, 3.0]
    with pytest.raises(dcp.CheckpointException, match="Make one writer for the training"):
        save(DcpWriter(in_memory), 4)


def test_a_save_that_no_rank_could_commit_is_refused(in_memory):
    writer = DcpWriter(in_memory)
    with pytest.raises(RuntimeError, match="use_collectives=False"):
        dcp.save({"a": 1}, storage_writer=writer, checkpoint_id="step-1", use_collectives=False)


def test_a_checkpoint_that_was_saved_whole_is_for_the_manager(in_memory):
    with CheckpointManager(in_memory) as checkpoints:
        checkpoints.save(1, torch.nn.Linear(2, 1))
    with pytest.raises(dcp.CheckpointException, match="was saved whole, by rank 0"):
        load_newest({"a": 1}, in_memory)
