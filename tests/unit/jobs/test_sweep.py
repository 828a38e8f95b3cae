"""The random tables of the loader's benchmark, and how their figures are judged."""

from __future__ import annotations

from argparse import Namespace

import pyarrow.parquet as pq
import pytest
import torch
from benchmarks.parts import loader, loader_sweep
from benchmarks.peers import table_readers
from benchmarks.ranks.shards import BY_PROCESSOR, FIGURES, FIRST_BATCH, SPEED
from benchmarks.suite.report import case_report
from benchmarks.suite.turns import run
from benchmarks.tables.loader_tables import TABLES, Shard, write_table

from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME


def test_random_tables_stay_within_their_limits_and_come_again(tmp_path):
    drawn = [loader_sweep.drawn(7, index, tmp_path) for index in range(300)]
    assert drawn[8] == loader_sweep.drawn(7, 8, tmp_path) != loader_sweep.drawn(8, 8, tmp_path)
    for how, shard in drawn:
        rows, files = how["rows"], how["files"]
        assert loader_sweep.FEWEST_ROWS <= rows <= loader_sweep.MOST_ROWS
        assert rows * TABLES[shard.table][1] <= loader_sweep.MOST_BYTES
        assert 1 <= files <= min(loader_sweep.MOST_FILES, rows // 50)
        assert 1 <= how["groups"] <= loader_sweep.MOST_GROUPS
        assert how["groups"] == 1 or rows // files // how["groups"] >= 50
        assert 0 <= shard.rank < shard.ranks <= loader_sweep.MOST_RANKS
        assert loader_sweep.SMALLEST_BATCH <= shard.batch_size <= loader_sweep.LARGEST_BATCH
    assert {shard.table for _, shard in drawn} == set(loader_sweep.KINDS)
    assert max(how["files"] for how, _ in drawn) > 10_000


def test_one_random_table_is_there_at_a_time(tmp_path, monkeypatch):
    for name in ("FEWEST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(loader_sweep, name, 301)
    for how, shard in loader_sweep.written(1, [4, 2], tmp_path):
        (folder,) = tmp_path.iterdir()
        assert str(folder) == shard.folder
        assert len(list(folder.glob("*.parquet"))) == how["files"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", loader_sweep.KINDS)
@pytest.mark.parametrize(("shuffle", "groups"), [(True, 1), (False, 3)])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_ours_and_the_loop_by_hand_read_every_row_of_all_shards_once(
    tmp_path, kind, shuffle, groups
):
    ranks = 3  # More than there are row groups, or fewer.
    write_table(kind, tmp_path, rows=301, files=2, groups=groups)
    assert (tmp_path / MANIFEST_NAME).exists()
    files = sorted(tmp_path.glob("*.parquet"))
    assert [pq.ParquetFile(file).num_row_groups for file in files] == [groups] * 2
    for engine in ("arrow", "naive"):
        read = [
            table_readers.read(
                engine,
                Shard(
                    table=kind,
                    folder=str(tmp_path),
                    batch_size=16,
                    rank=rank,
                    ranks=ranks,
                    shuffle=shuffle,
                ),
            )
            for rank in range(ranks)
        ]
        assert sum(rows for rows, *_ in read) == 301
        assert all(first <= seconds for _, seconds, _, first, _ in read)


def test_the_loop_by_hand_shuffles_each_row_group_and_loses_no_value(tmp_path):
    write_table("int", tmp_path, rows=40, files=2)
    order = torch.randperm(20)
    column = pq.read_table(sorted(tmp_path.glob("*.parquet"))[0]).column("user").combine_chunks()
    shuffled = table_readers._shuffled("int", column, order)
    assert shuffled.tolist() == [column[at].as_py() for at in order.tolist()]


def sweep_report(monkeypatch, tables, speeds):
    """The report of a sweep over tables of so many rows, read by each side with such speeds."""
    drawn = [
        ({"rows": rows}, Shard(table="int", folder=str(rows), batch_size=1)) for rows in tables
    ]

    def measured(side, shard):
        speed = speeds[side][tables.index(int(shard.folder))]
        return {SPEED: speed, BY_PROCESSOR: speed} if speed else {}

    monkeypatch.setattr(loader_sweep, "written", lambda *_: iter(drawn))
    monkeypatch.setattr(loader_sweep, "measured", measured)
    (case,) = loader_sweep.cases(Namespace(tables=len(tables), only=None, seed=1))
    return case_report(case, run(case))


def test_the_worst_table_decides_unless_it_is_small(monkeypatch):
    tables = [*range(300_000, 306_000, 1000), 100_000]
    theirs = {"naive": [1.0] * 7, "petastorm_batched": [0.5, *[None] * 6]}
    good = sweep_report(monkeypatch, tables, {"arrow": [1.5, *[2.0] * 5, 0.5], **theirs})
    all_tables, large = (
        good["figures"][name]["ratios"]["arrow"]["naive"]
        for name in (BY_PROCESSOR, loader_sweep.JUDGED)
    )
    assert (all_tables["worst"], all_tables["pairs"]) == (0.5, 7)
    assert (large["worst"], large["pairs"]) == (1.5, 6)
    # petastorm read the first table alone, and is compared with us on that.
    beside_petastorm = good["figures"][SPEED]["ratios"]["arrow"]["petastorm_batched"]
    assert (beside_petastorm["median"], beside_petastorm["pairs"]) == (3.0, 1)
    assert not good["missed"]
    assert not any(one["is_noise"] for one in good["figures"][SPEED]["sides"].values())
    (missed,) = sweep_report(monkeypatch, tables, {"arrow": [0.9, *[4.0] * 6], **theirs})["missed"]
    assert missed == (
        f"random tables: {loader_sweep.JUDGED} of arrow was 0.900 times as good as that of naive "
        "at worst, and should be 1 times"
    )
    (missed,) = sweep_report(monkeypatch, tables, {"arrow": [*[1.4] * 6, 9.0], **theirs})["missed"]
    assert missed.endswith("1.400 times as good as that of naive, and should be 1.5 times")


def test_every_seed_keeps_to_the_bounds(monkeypatch):
    def report(ours):
        def measured(side, shard):
            seconds, speed = ours[shard.seed - 1] if side == "arrow" else (1.0, 1.0)
            read.append((side, shard.seed, shard.rank))
            return {**dict.fromkeys(FIGURES, 1.0), SPEED: speed, FIRST_BATCH: seconds}

        read = []
        monkeypatch.setattr(loader, "measured", measured)
        (case,) = loader.cases(Namespace(tables=[], seeds=len(ours), rows=16, ranks=2))
        found = case_report(case, run(case))
        pairs = [(seed, seed % 2) for seed in range(1, len(ours) + 1)]
        for side in ("arrow", "petastorm_batched"):
            assert [one[1:] for one in read if one[0] == side] == pairs, "the same for both"
        return found["missed"]

    assert not report([(0.3, 3.0)])
    (missed,) = report([(0.3, 3.0), (0.4, 3.0)])
    assert "first batch of arrow was 0.4 s at worst" in missed
    (missed,) = report([(0.3, 2.9), *[(0.3, 4.9)] * 5])
    assert "2.900 times as good as that of petastorm_batched at worst" in missed
