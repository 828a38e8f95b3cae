"""Loaders sharded by a mesh dimension or a process group, without any process beside this one."""

from __future__ import annotations

import re
from contextlib import contextmanager
from itertools import chain

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from sparkdl_runner.data.batches.shard_group import shard_of
from sparkdl_runner.data.consumers.engine_choice import wanted_tail
from sparkdl_runner.launch.backends import get_backend
from training_tables import converter_of, open_table, write_table

ROWS = 96


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, {"id": list(range(ROWS))})
    return folder


@contextmanager
def as_rank(rank: int, size: int = 4):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def mesh(shape=(2, 2), names=("dp", "tp")):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def ids(loader) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


def test_ranks_of_one_copy_get_the_same_batches_and_copies_share_the_rows(table):
    found, states = [], []
    for rank in range(4):
        with as_rank(rank), open_table(table, batch_size=8, shard_by=mesh()["dp"]) as loader:
            assert (loader.global_batch_size, len(loader)) == (16, 6)
            found.append(ids(loader))
            states.append(loader.state_dict())
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert sorted(chain.from_iterable(found[0] + found[2])) == list(range(ROWS))
    assert states == states[:1] * 4


def test_a_process_group_is_as_good_and_the_world_is_one(table):
    for rank in range(4):
        with as_rank(rank):
            columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
            assert shard_of(columns[rank % 2], None, None) == (rank // 2, 2)
            assert shard_of(dist.group.WORLD, None, None) == (rank, 4)
            with pytest.raises(ValueError, match=rf"Rank {rank} of 4 is not in shard_by, a proc"):
                shard_of(columns[1 - rank % 2], None, None)


def test_a_loader_goes_on_by_another_mesh(table):
    whole = []
    for rank in range(2):
        with (
            as_rank(rank, 2),
            open_table(table, global_batch_size=16, seed=5, shard_by=dist.group.WORLD) as loader,
        ):
            whole.append(ids(loader))
    with as_rank(0), open_table(table, global_batch_size=16, seed=5, shard_by=mesh()["dp"]) as one:
        batches = iter(one)
        assert [next(batches)["id"].tolist() for _ in range(2)] == whole[0][:2]
        state = one.state_dict()
    for rank in range(2):
        with as_rank(rank, 2):
            by = mesh((2,), ("dp",))["dp"]
            with open_table(table, global_batch_size=16, seed=5, shard_by=by) as loader:
                loader.load_state_dict(state)
                assert ids(loader) == whole[rank][2:]


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 3), r"multiply to 6, and this run has 4 ranks: .* run with num_proc=6"),
        ((1, 3), r"Rank 3 is not in this mesh, .* ranks \(4\): expected sizes that multiply to"),
    ],
)
def test_a_mesh_that_does_not_fit_the_ranks_is_answered_with_what_to_do(shape, said, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with as_rank(3), pytest.raises(RuntimeError) as raised:
        _ = mesh(shape)["dp"]
    assert re.search(said, get_backend("torch").advice(raised.value))


def test_one_copy_keeps_the_steps_of_several():
    with as_rank(1, 2):
        alone = {"batch_size": 10, "num_epochs": 1}
        assert wanted_tail(alone, ROWS) == "uneven"
        assert wanted_tail({**alone, "shard_by": mesh((1, 2))["dp"]}, ROWS) == "drop"


def test_what_is_no_dimension_is_said(table):
    with as_rank(3):
        both = mesh()
        for bad, error, words in [
            (both, ValueError, r"a mesh of 2 dimensions; .* different rows, such as mesh\['dp'\]"),
            ("dp", TypeError, r"shard_by is 'dp'; expected one dimension of a DeviceMesh, such as"),
        ]:
            with pytest.raises(error, match=words):
                shard_of(bad, None, None)
        with pytest.raises(ValueError, match=r"and so do cur_shard and shard_count: give one"):
            open_table(table, batch_size=8, shard_by=both["dp"], cur_shard=0, shard_count=2)
        # torch says this itself.
        with pytest.raises(KeyError, match=r"Invalid mesh_dim_names \('pp',\).*\['dp', 'tp'\]"):
            both["pp"]
        few = mesh((1, 2))
        with pytest.raises(ValueError, match=r"Rank 3 of 4 is not in shard_by, the mesh of ranks"):
            shard_of(few["tp"], None, None)


@pytest.mark.one_lane
def test_petastorms_engine_gives_one_copy_the_same_batches(table):
    found = []
    arguments = {"engine": "petastorm", "batch_size": 8, "num_epochs": 1}
    for rank in range(2):
        with as_rank(rank, 2):
            by = mesh((1, 2))["dp"]
            with converter_of(table).make_torch_dataloader(**arguments, shard_by=by) as loader:
                found.append(ids(loader))
            for more in ({"workers_count": 2}, {"shuffling_queue_capacity": 9}):
                with (
                    pytest.raises(ValueError, match=r"several ranks read the same shard, and with"),
                    converter_of(table).make_torch_dataloader(**arguments, **more, shard_by=by),
                ):
                    pass
    assert found[0] == found[1]
    assert sorted(chain.from_iterable(found[0])) == list(range(ROWS))
