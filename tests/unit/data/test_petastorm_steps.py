"""Equal steps from petastorm's unequal shards, counted without petastorm."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from sparkdl_runner.data import DatasetError
from sparkdl_runner.data.consumers.petastorm import engine as petastorm_engine
from sparkdl_runner.data.consumers.petastorm.engine import obstacle
from sparkdl_runner.data.consumers.petastorm.loader import PetastormLoader
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.row_groups import RowGroups
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles


@pytest.fixture(autouse=True, scope="module")
def _pretend_that_petastorm_runs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(petastorm_engine, "require_petastorm", lambda: None)
        yield


def manifest_of(group_rows: list[int]) -> Manifest:
    return Manifest(
        files=(),
        row_groups=RowGroups.of([len(group_rows)], group_rows, [rows * 8 for rows in group_rows]),
        schema_base64="",
        columns=(),
    )


class Dealt(PetastormLoader):
    """Deals rows as petastorm's reader does, without reading any."""

    def __init__(self, group_rows: list[int], keep=lambda row: True, **arguments) -> None:
        options = {
            "batch_size": 4,
            "num_epochs": 1,
            "cur_shard": 0,
            "shard_count": 1,
            "seed": 0,
            "steps_per_epoch": None,
            "unischema": False,
            "data_loader_fn": None,
            "shuffling_queue_capacity": 0,
            "reader_arguments": {},
            **arguments,
        }
        files = VerifiedFiles(Dataset(manifest_of(group_rows), fs.LocalFileSystem(), "/x"))
        super().__init__(files, "file:///x", **options)
        self.keep = keep
        ends = list(itertools.accumulate(group_rows))
        starts = [0, *ends[:-1]]
        self.groups = [range(*pair) for pair in zip(starts, ends, strict=True)]

    def _one_pass(self, epoch, turn):
        shard, count = self._shard
        rows = [row for group in self.groups[shard::count] for row in group if self.keep(row)]
        rows *= self._rounds
        for start in range(0, len(rows), self._batch_size):
            yield rows[start : start + self._batch_size]


@given(
    group_rows=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    shards=st.integers(1, 7),
    batch_size=st.integers(1, 8),
    epochs=st.integers(1, 3),
)
def test_all_ranks_make_the_same_steps(group_rows, shards, batch_size, epochs):
    def load(shard):
        arguments = {"batch_size": batch_size, "num_epochs": epochs, "shard_count": shards}
        return Dealt(group_rows, cur_shard=shard, **arguments)

    least = min(sum(group_rows[shard::shards]) for shard in range(shards))
    if shards > 1 and least == 0:
        with pytest.raises(ValueError, match="leave some rank without a batch"):
            load(0)
        return
    loaders = [load(shard) for shard in range(shards)]
    batches = [list(loader) for loader in loaders]
    assert {len(made) for made in batches} == {epochs * len(loaders[0])}
    one_epoch = [row for made in batches for batch in made[: len(loaders[0])] for row in batch]
    assert len(one_epoch) == len(set(one_epoch))
    if shards == 1:
        assert sorted(one_epoch) == list(range(sum(group_rows)))
    elif least < batch_size:
        assert min(len(made[0]) for made in batches) == least
    else:
        assert all(len(batch) == batch_size for made in batches for batch in made)


def test_a_filtered_shard_begins_again_until_its_steps_are_made():
    def odd(row):
        return row % 2 == 1

    arguments = {"reader_arguments": {"predicate": odd}, "shard_count": 2, "steps_per_epoch": 5}
    for shard in (0, 1):
        loader = Dealt([10, 10], odd, cur_shard=shard, **arguments)
        assert len(list(loader)) == len(loader) == 5
    with pytest.raises(DatasetError, match="lets nothing through"):
        list(Dealt([10, 10], lambda row: False, **arguments))
    del arguments["steps_per_epoch"]
    with pytest.raises(ValueError, match="With predicate and 2 shards"):
        Dealt([10, 10], **arguments)


def test_no_end_of_epochs():
    loader = Dealt([10], num_epochs=None)
    assert loader.steps_per_epoch == 3
    with pytest.raises(TypeError, match="steps_per_epoch says how many"):
        len(loader)
    epoch = list(itertools.islice(loader, 3))
    assert [len(batch) for batch in epoch] == [4, 4, 4]
    assert {row for batch in epoch for row in batch} == set(range(10))


def test_each_iteration_begins_the_next_epoch_until_the_loader_is_closed(monkeypatch):
    monkeypatch.setattr(Dealt, "_one_pass", lambda self, epoch, turn: iter([epoch, epoch, epoch]))
    loader = Dealt([10], num_epochs=2)
    iter(loader)  # Nothing was taken of it.
    assert list(itertools.islice(loader, 2)) == [0, 0]
    begun = iter(loader)
    assert list(itertools.islice(begun, 4)) == [1, 1, 1, 2]
    assert list(loader) == [3, 3, 3, 4, 4, 4]
    loader.set_epoch(1)
    assert next(iter(loader)) == 1
    loader.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="is closed"):
            next(begun)
    with pytest.raises(RuntimeError, match="is closed"):
        iter(loader)


def test_a_shard_smaller_than_a_batch_gives_what_it_has_and_goes_round_without_an_end():
    few = {"batch_size": 32, "shard_count": 2}
    for shard, rows in ((0, 3), (1, 5)):
        assert [len(batch) for batch in Dealt([3, 5], cur_shard=shard, **few)] == [rows]
        endless = Dealt([3, 5], cur_shard=shard, num_epochs=None, **few)
        assert [len(batch) for batch in itertools.islice(endless, 3)] == [32, 32, 32]


def test_bad_counts():
    for size in (0, -1, 2.5, None):
        with pytest.raises(ValueError, match="batch_size must be a whole number above 0"):
            Dealt([10], batch_size=size)
    with pytest.raises(ValueError, match="steps_per_epoch must be above 0"):
        Dealt([10], steps_per_epoch=0)


def test_seeds_differ_between_epochs_and_are_never_petastorms_none(monkeypatch):
    seen = []
    real, looks = PetastormLoader._open_reader, []
    fake = {"make_batch_reader": lambda *args, **kwargs: seen.append(kwargs["seed"])}
    fake["make_reader"] = fake["make_batch_reader"]
    monkeypatch.setitem(sys.modules, "petastorm", type("Fake", (), fake))
    monkeypatch.setattr(VerifiedFiles, "check_all", lambda self: looks.append(len(seen)))
    for seed in (0, 1, 2**63):
        loader = Dealt([10], seed=seed, unischema=True)
        for epoch, turn in itertools.product(range(5), range(3)):
            real(loader, epoch, turn)
    assert len(set(seen)) == len(seen) == 45
    assert looks == list(range(45))  # Before each reader.
    assert 0 not in seen
    assert max(seen) < 2**31
    assert np.array(seen).min() > 0


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        ({"pyarrow": "25.0.1", "numpy": "2.4.0"}, "pyarrow below 15, and this is pyarrow 25.0.1"),
        ({"pyarrow": "14.0.2", "numpy": "2.4.0"}, "numpy below 2, and this is numpy 2.4.0"),
    ],
)
def test_one_sentence_says_which_version_is_in_the_way(monkeypatch, versions, sentence):
    monkeypatch.setattr(petastorm_engine.metadata, "version", versions.__getitem__)
    assert sentence in obstacle()
    assert obstacle().count(". ") == 0


def test_a_missing_petastorm_is_named(monkeypatch):
    old = {"pyarrow": "14.0.2", "numpy": "1.26.4"}
    monkeypatch.setattr(petastorm_engine.metadata, "version", old.__getitem__)
    monkeypatch.setitem(sys.modules, "petastorm", None)
    assert "petastorm cannot be imported" in obstacle()
    assert "pip install 'sparkdl-runner[petastorm]'" in obstacle()


class Reader:
    """Stands for petastorm's, whose threads go on until it is stopped and joined."""

    def __init__(self):
        self.calls = []

    def stop(self):
        self.calls.append("stop")

    def join(self):
        self.calls.append("join")


def broken_loader(reader, **arguments):
    yield [0]
    raise OSError("the disk is gone")


def whole_loader(reader, **arguments):
    yield from [[0], [1], [2]]


def test_every_reader_is_stopped_however_the_reading_ends(monkeypatch):
    readers = []

    def open_reader(self, epoch, turn):
        readers.append(Reader())
        return readers[-1]

    monkeypatch.setitem(sys.modules, "petastorm", type("Fake", (), {}))
    monkeypatch.setitem(sys.modules, "petastorm.pytorch", type("Fake", (), {"DataLoader": None}))
    monkeypatch.setattr(Dealt, "_one_pass", PetastormLoader._one_pass)
    monkeypatch.setattr(PetastormLoader, "_open_reader", open_reader)
    assert len(list(Dealt([3], batch_size=1, num_epochs=2, data_loader_fn=whole_loader))) == 6
    with pytest.raises(OSError, match="the disk is gone"):
        list(Dealt([3], batch_size=1, data_loader_fn=broken_loader))
    left = iter(Dealt([3], batch_size=1, data_loader_fn=whole_loader))
    next(left)
    assert not readers[-1].calls
    left.close()
    # Lightning makes the next iterator while it still holds the last one.
    loader = Dealt([3], batch_size=1, data_loader_fn=whole_loader)
    first, second = iter(loader), iter(loader)
    assert next(first) == next(second) == [0]
    first.close()
    assert [reader.calls for reader in readers[-2:]] == [["stop", "join"], []]
    loader.close()
    # Of four shards' rows, each epoch takes as many as the smallest has.
    shard = Dealt([3, 1], batch_size=1, shard_count=2, data_loader_fn=whole_loader)
    assert len(list(shard)) == 1
    assert [reader.calls for reader in readers] == [["stop", "join"]] * 7
