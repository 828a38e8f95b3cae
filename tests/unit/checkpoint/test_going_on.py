"""Training that is interrupted and goes on ends with the same bits as training that is not."""

from __future__ import annotations

import random
import textwrap
import warnings

import numpy as np
import pytest
import torch

from small_training import Training, equal, open_loader, save_steps, write_rows
from sparkdl_runner.checkpoint import (
    CheckpointError,
    CheckpointManager,
    CheckpointMismatchError,
    mismatch,
)
from sparkdl_runner.rank import rank_facts, resumable

STEPS = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    write_rows(directory)
    return directory


def test_the_copy_is_taken_before_save_returns(in_memory):
    """Steps go on while the checkpoint is written; it must not see them."""
    training = Training()
    with CheckpointManager(in_memory) as checkpoints:
        for step in range(1, 6):
            training.step()
            at_save = training.weights()
            checkpoints.save(step, training.model, training.optimizer)
            with torch.no_grad():
                for parameter in training.model.parameters():
                    parameter.zero_()
            checkpoints.wait()
            other = Training()
            checkpoints.restore(other.model, other.optimizer)
            assert equal(other.weights(), at_save)


def test_tied_weights_stay_tied_and_views_are_saved_without_the_rest(tmp_path):
    big = torch.arange(1_000_000.0)
    turned = torch.rand(3, dtype=torch.complex64)
    extra = {
        "turned": turned,
        "its conjugate, in the same memory": turned.conj(),
        "view": big[10:20],
        "columns": big.view(1000, 1000).t()[:2],
        "expanded": torch.ones(1).expand(1000, 1000)[0],
        "twice": [big[:3], big[:3]],
        "channels_last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
        "half": torch.rand(3).half(),
        "complex": torch.rand(3, dtype=torch.complex64).conj(),
        "text": "text",
        "parameter": torch.nn.Parameter(torch.rand(2)),
    }
    model = torch.nn.ModuleList([torch.nn.Linear(300, 300, bias=False) for _ in range(2)])
    model[1].weight = model[0].weight
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, model, extra=extra)
        restored = checkpoints.restore(model)
    for name, value in extra.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(restored.extra[name], value.detach()), name
    first, second = restored.extra["twice"]
    assert first.data_ptr() == second.data_ptr()
    assert restored.extra["channels_last"].is_contiguous(memory_format=torch.channels_last)
    place = tmp_path / "step-1" / "attempt-0"
    assert (place / "extra.safetensors").stat().st_size < 40_000
    assert (place / "model.safetensors").stat().st_size < 1.2 * 300 * 300 * 4


def test_a_changing_model_leaves_no_buffers_behind():
    from sparkdl_runner.checkpoint.save.host_copies import HostCopies

    copies = HostCopies()
    tensors = [torch.rand(100), torch.rand(100), torch.rand(7)]
    places = []
    for chosen in (tensors, tensors, tensors[:1]):
        copies.begin()
        taken = [copies.copy(tensor) for tensor in chosen]
        copies.end()
        assert all(map(torch.equal, taken, chosen))
        places.append({one.data_ptr() for one in taken})
    assert places[0] == places[1]
    assert places[2] < places[1]
    assert copies.size_bytes == 400
    assert sum(map(len, copies._buffers.values())) == 1
    assert not copies._taken, "what was saved is not kept until the next save"


def test_tensors_of_other_classes_count_as_well():
    from sparkdl_runner.checkpoint.save.host_copies import HostCopies

    class Marked(torch.Tensor):
        pass

    copies = HostCopies()
    copies.begin()
    for tensor in (torch.rand(3), torch.rand(5).as_subclass(Marked)):
        taken = copies.copy(tensor)
        assert torch.equal(taken, tensor)
        assert taken.data_ptr() != tensor.data_ptr()
    assert copies.size_bytes == 32


def test_what_wraps_the_model_is_left_out(tmp_path):
    training = Training()
    wrapped = torch.nn.DataParallel(training.model)
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, wrapped, training.optimizer)
        other = Training()
        checkpoints.restore(other.model, other.optimizer)
        assert equal(other.weights(), training.weights())
        checkpoints.restore(torch.nn.DataParallel(other.model))


def test_parts_can_be_restored_alone(tmp_path):
    save_steps(tmp_path, 3)
    with CheckpointManager(tmp_path) as checkpoints:
        restored = checkpoints.restore()
        assert (restored.step, restored.attempt, restored.world_size) == (3, 0, 1)
        assert (restored.epoch, restored.metrics) == (None, {})
        assert restored.path == f"file://{tmp_path}/step-3/attempt-0"
        assert checkpoints.restore(optimizer=Training().optimizer).step == 3


def test_a_process_that_trains_nothing_is_told_of_load(tmp_path):
    save_steps(tmp_path, 1)
    with CheckpointManager(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match=r"no rank of one .*Checkpoint\.load\('file:/"):
            checkpoints.restore(Training().model)
        checkpoints.save(2, Training().model)
        assert checkpoints.restore(Training().model).step == 2  # it does train


def test_there_may_be_no_checkpoint(tmp_path):
    with CheckpointManager(tmp_path / "a" / "b") as checkpoints:
        assert checkpoints.list() == []
        assert checkpoints.restore(Training().model, Training().optimizer) is None


def test_another_model_is_a_mismatch_and_changes_nothing(tmp_path):
    save_steps(tmp_path, 1)
    with CheckpointManager(tmp_path) as checkpoints:
        wider = Training(width=5)
        before = wider.weights()
        with pytest.raises(CheckpointMismatchError, match=r"1 of another shape: 0\.weight \(\[4"):
            checkpoints.restore(wider.model, wider.optimizer)
        assert equal(wider.weights(), before)
        longer = torch.nn.Sequential(*Training().model, *(torch.nn.Linear(1, 1) for _ in range(9)))
        with pytest.raises(
            CheckpointMismatchError, match=r"18 missing in the checkpoint: 10\.bias.* and 8 more"
        ):
            checkpoints.restore(longer, Training().optimizer)
        with pytest.raises(CheckpointMismatchError, match="7 unexpected in the checkpoint"):
            checkpoints.restore(Training().model[:1], Training().optimizer)


def test_another_optimizer_is_a_mismatch(tmp_path):
    save_steps(tmp_path, 1)
    with CheckpointManager(tmp_path) as checkpoints:
        model = Training().model
        for optimizer, message in (
            (torch.optim.SGD(model.parameters()), "its optimizer is Adam, and SGD"),
            (torch.optim.Adam(model[0].parameters()), "1 parameter groups of 6 parameters"),
            (
                torch.optim.Adam([{"params": layer.parameters()} for layer in model]),
                "restored has 4 of 2, 2, 0, 2",
            ),
        ):
            before = model[0].weight.clone()
            with pytest.raises(CheckpointMismatchError, match=message):
                checkpoints.restore(model, optimizer)
            assert torch.equal(model[0].weight, before)


def test_the_names_of_a_sharded_optimizers_state_are_compared():
    assert mismatch.names_problem(["a", "b"], ["b", "a"]) is None
    assert mismatch.names_problem(["a", "b"], ["b", "c"]) == (
        "its optimizer has another state: 1 missing in the checkpoint: c; 1 unexpected in the "
        "checkpoint: a."
    )


def test_what_was_not_saved_cannot_be_restored(tmp_path, data):
    training = Training()
    with CheckpointManager(tmp_path) as checkpoints, open_loader(data) as loader:
        checkpoints.save(1, extra=[1])
        for arguments, what in (
            ({"model": training.model}, "no model"),
            ({"optimizer": training.optimizer}, "no state of an optimizer"),
            ({"loader": loader}, "no state of a loader"),
        ):
            with pytest.raises(CheckpointMismatchError, match=what):
                checkpoints.restore(**arguments)


def test_the_loaders_own_errors_pass(tmp_path, data):
    from sparkdl_runner.data import StateError

    training = Training()
    before = training.weights()
    with CheckpointManager(tmp_path) as checkpoints, open_loader(data) as loader:
        checkpoints.save(1, Training().model, loader=loader)
        checkpoints.wait()

        class Other:
            def load_state_dict(self, state):
                raise StateError("another data set")

        with pytest.raises(StateError, match="another data set"):
            checkpoints.restore(training.model, loader=Other())
    assert equal(training.weights(), before)


def test_registered_state_travels_along(tmp_path):
    seen = []
    resumable.register("metrics", lambda: {"undelivered": [1, 2.5]}, seen.append)
    try:
        with CheckpointManager(tmp_path) as checkpoints:
            checkpoints.save(1)
            checkpoints.wait()
            checkpoints.restore()
            assert seen == [{"undelivered": [1, 2.5]}]
            resumable.unregister("metrics")
            checkpoints.restore()  # for whoever comes later
            resumable.register("metrics", lambda: None, seen.append)
            assert len(seen) == 2
    finally:
        resumable.unregister("metrics")


def test_the_newest_checkpoint_is_a_fact_that_is_told_at_once(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(
        rank_facts, "_send", lambda: told.append(rank_facts.current()["checkpoint_step"])
    )
    save_steps(tmp_path, 2, 5)
    assert told == [2, 5]
    assert rank_facts.current()["checkpoint_step"] == 5
    assert rank_facts.current()["checkpoint"] == f"file://{tmp_path}/step-5/attempt-0"


def test_a_rank_that_is_new_is_seeded_by_step_and_rank(tmp_path):
    from sparkdl_runner.checkpoint import generators

    draws = []
    for step, rank in ((4, 1), (4, 2), (5, 1), (4, 1)):
        generators.seed(step, rank)
        draws.append((random.random(), float(np.random.random()), float(torch.rand(()))))
    assert draws[0] == draws[3]
    assert len({value for draw in draws for value in draw}) == 9
    save_steps(tmp_path, 4)
    (checkpoint,) = (tmp_path / "step-4").iterdir()
    assert (checkpoint / "rng-0.safetensors").exists()


def test_generators_saved_without_a_gpu_go_on_with_one(monkeypatch):
    from sparkdl_runner.checkpoint import generators

    state = generators.capture()
    state.pop("cuda", None)
    expected = random.random(), float(np.random.random()), float(torch.rand(()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    generators.put_back(state)
    assert (random.random(), float(np.random.random()), float(torch.rand(()))) == expected


def test_saving_a_step_twice_is_saving_it_once(tmp_path):
    training = Training()
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, training.model)
        saved = training.weights()
        training.step()
        checkpoints.save(1, training.model)
        checkpoints.restore(training.model)
        assert equal(training.weights(), saved)
    with pytest.raises(CheckpointError, match="closed"):
        checkpoints.save(2)


def test_beginning_anew_where_another_training_was_is_a_warning(tmp_path):
    save_steps(tmp_path, 3)
    with CheckpointManager(tmp_path) as checkpoints:
        with pytest.warns(UserWarning, match=r"holds a checkpoint of step 3.*new directory"):
            checkpoints.save(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checkpoints.save(2)


def test_the_example_of_the_docstring_runs(tmp_path):
    """As it stands there, with a step where it says ``...``."""
    text = CheckpointManager.__doc__ or ""
    example = text.partition("Example::\n")[2].partition("\n    ``restore``")[0]
    assert "checkpoints.save(" in example
    code = textwrap.dedent(example).replace("...", "optimizer.step()")
    model = torch.nn.Linear(1, 1)

    class Loader(list):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    names = {
        "CheckpointManager": CheckpointManager,
        "url": str(tmp_path),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters()),
        "loader": Loader(range(250)),
    }
    exec(code, names)
    assert names["step"] == 250
    exec(code, names)
    assert names["restored"].step == 200
    assert names["restored"].extra == {"note": "any plain"}
