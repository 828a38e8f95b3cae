"""``hvd.elastic.run``: what ``commit()`` keeps is found by the next attempt."""

from __future__ import annotations

import itertools

import pytest
import torch
from horovod.common.elastic import ObjectState

from sparkdl_runner.checkpoint import CheckpointError
from sparkdl_runner.launch.backends import horovod_elastic
from sparkdl_runner.launch.backends.horovod_elastic import PLACE, run_fn
from sparkdl_runner.launch.config import RunConfig


class LostRankError(Exception):
    pass


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, tmp_path.as_uri())
    begin_attempt(monkeypatch)
    return tmp_path


def begin_attempt(monkeypatch):
    """As in a process that has run no state yet."""
    monkeypatch.setattr(horovod_elastic, "_numbers", itertools.count(1))


def alone(**values):
    return ObjectState(bcast_object=lambda value: value, get_rank=lambda: 0, **values)


def elastic(func):
    return run_fn(func, reset=pytest.fail)


@elastic
def train(state, fail_at=None):
    for state.epoch in range(state.epoch, 4):  # noqa: B020 - as in Horovod's examples
        state.commit()
        state.seen.append(state.epoch)
        if state.epoch == fail_at:
            raise LostRankError


def test_a_state_is_restored_from_its_last_commit(monkeypatch, place, capsys):
    with pytest.raises(LostRankError):
        train(alone(epoch=0, seen=[]), fail_at=2)
    begin_attempt(monkeypatch)
    again = alone(epoch=0, seen=[])
    resets = []
    again.register_reset_callbacks([lambda: resets.append(again.epoch)])
    train(again)
    assert f"hvd.elastic.run goes on from file://{place}/state-1/step-3" in capsys.readouterr().out
    assert again.seen == [0, 1, 2, 3]
    assert resets == [2]


def test_without_a_commit_nothing_is_restored_and_no_callback_is_called(monkeypatch):
    state = alone(epoch=0)
    state.register_reset_callbacks([pytest.fail])
    elastic(lambda state: None)(state)
    begin_attempt(monkeypatch)
    elastic(lambda state: None)(alone(epoch=0))


def test_a_second_call_goes_on_with_what_is_in_memory():
    state = alone(epoch=0, seen=[])

    @elastic
    def one_epoch(state):
        state.commit()
        state.epoch += 1

    one_epoch(state)
    state.save()
    one_epoch(state)
    assert state.epoch == 2


def test_each_state_has_a_folder_of_its_own(place, monkeypatch):
    for attempt in range(2):
        begin_attempt(monkeypatch)
        first, second = alone(epoch=0, seen=["first"]), alone(epoch=0, seen=["second"])
        train(first)
        train(second)
        assert (first.seen[0], second.seen[0]) == ("first", "second"), attempt
    assert sorted(one.name for one in place.iterdir()) == ["state-1", "state-2"]


def test_what_has_a_state_dict_is_restored_in_place(monkeypatch):
    def scheduled():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    @elastic
    def two_steps(state):
        for _ in range(2):
            state.scheduler.optimizer.step()
            state.scheduler.step()
        state.commit()

    two_steps(alone(scheduler=scheduled()))
    begin_attempt(monkeypatch)
    scheduler = scheduled()
    elastic(lambda state: None)(alone(scheduler=scheduler))
    assert scheduler.last_epoch == 2


def test_of_a_commit_only_what_the_state_has_is_taken(monkeypatch):
    elastic(lambda state: state.commit())(alone(epoch=3, batch=1))
    begin_attempt(monkeypatch)
    again = alone(epoch=0)
    elastic(lambda state: state.commit())(again)
    assert again.epoch == 3
    assert not hasattr(again, "batch")


def test_what_cannot_be_kept_is_named():
    with pytest.raises(TypeError, match=r"\['lock'\] is a .*Generator, which a checkpoint cannot"):
        elastic(lambda state: state.commit())(alone(lock=torch.Generator()))
    with pytest.raises(TypeError, match="give it a TorchState"):
        elastic(print)(object())


def test_without_a_place_it_says_what_to_write(monkeypatch):
    monkeypatch.delenv(PLACE)
    with pytest.raises(CheckpointError, match=r"RunConfig\(elastic_state_url="):
        train(alone(epoch=0, seen=[]))


def test_the_place_is_the_drivers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunConfig(elastic_state_url="states").elastic_state_url == f"{tmp_path.as_uri()}/states"
    with pytest.raises(ValueError, match="credentials"):
        RunConfig(elastic_state_url="s3a://me:secret@bucket/states")
    with pytest.raises(TypeError, match="expected a URL or a path"):
        RunConfig(elastic_state_url=7)
