"""The random tables of the loader's benchmark, and how their figures are judged."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
import torch
from benchmarks.parts import array_seeds, small_files, sweep
from benchmarks.ranks import sweep_rank
from benchmarks.tables import sweep_tables

from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME


def test_shapes_stay_within_their_limits_and_come_again():
    shapes = [sweep_tables.shape(7, index) for index in range(300)]
    assert shapes[8] == sweep_tables.shape(7, 8) != sweep_tables.shape(8, 8)
    for one in shapes:
        rows, files = one["rows"], one["files"]
        assert sweep_tables.FEWEST_ROWS <= rows <= sweep_tables.MOST_ROWS
        assert rows * sweep_tables.KINDS[one["kind"]][1] <= sweep_tables.MOST_BYTES
        assert 1 <= files <= min(sweep_tables.MOST_FILES, rows // 50)
        assert 1 <= one["groups"] <= sweep_tables.MOST_GROUPS
        assert one["groups"] == 1 or rows // files // one["groups"] >= 50
        assert 0 <= one["shard"] < one["world"] <= sweep_tables.MOST_RANKS
        assert sweep_tables.SMALLEST_BATCH <= one["batch"] <= sweep_tables.LARGEST_BATCH
    assert {one["kind"] for one in shapes} == set(sweep_tables.KINDS)
    assert max(one["files"] for one in shapes) > 10_000


@pytest.mark.parametrize("kind", sweep_tables.KINDS)
@pytest.mark.parametrize(("shuffle", "groups"), [(True, 1), (False, 3)])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_ours_and_the_loop_by_hand_read_every_row_of_all_shards_once(
    tmp_path, kind, shuffle, groups
):
    world = 3  # More than there are row groups, or fewer.
    request = {"index": 0, "kind": kind, "rows": 301, "files": 2, "groups": groups, "world": world}
    request |= {"compression": "none", "batch": 16, "shuffle": shuffle, "seed": 5}
    sweep_tables.write(request, tmp_path)
    assert (tmp_path / MANIFEST_NAME).exists()
    files = sorted(tmp_path.glob("*.parquet"))
    assert [pq.ParquetFile(file).num_row_groups for file in files] == [groups] * 2
    request["folder"] = str(tmp_path)
    for engine in ("ours", "naive"):
        read = [sweep_rank.read(engine, {**request, "shard": shard}) for shard in range(world)]
        assert sum(one["rows"] for one in read) == 301
        assert all(one["first_batch_seconds"] <= one["seconds"] for one in read)


def test_the_loop_by_hand_shuffles_each_row_group_and_loses_no_value(tmp_path):
    request = {"index": 0, "kind": "ints", "rows": 40, "files": 2, "groups": 1, "world": 1}
    sweep_tables.write({**request, "compression": "none"}, tmp_path)
    order = torch.randperm(20)
    column = pq.read_table(sorted(tmp_path.glob("*.parquet"))[0]).column("user").combine_chunks()
    shuffled = sweep_rank._shuffled(column, order, is_list=False)
    assert shuffled.tolist() == [column[at].as_py() for at in order.tolist()]


def test_the_worst_table_decides_unless_it_is_small():
    def one(rows, ours, naive):
        cost = {"rows": rows, "seconds": 1.0, "first_batch_seconds": 0.1}
        found = {
            "ours": [{**cost, "cpu_seconds": ours}],
            "naive": [{**cost, "cpu_seconds": naive}],
            "petastorm": "TypeError: no",
        }
        return {**sweep_tables.shape(1, 0), "rows": rows, **sweep._figures(found)}

    def report(*results):
        return {"results": results, "times": sweep._all_times(results)}

    good = report(one(300_000, 1.0, 1.5), one(300_000, 1.0, 2.0), one(100_000, 1.0, 0.5))
    assert good["times"]["naive, all"]["worst"] == 0.5
    assert good["times"]["naive, 200,000 rows or more"]["worst"] == 1.5
    assert sweep.is_good(good)
    assert "petastorm, all" not in good["times"]
    assert "0.50 x naive" in sweep.table(good)
    assert not sweep.is_good(report(one(300_000, 1.0, 2.0), one(300_000, 1.0, 0.9)))
    assert not sweep.is_good(report(one(300_000, 1.0, 1.4)))


def test_every_seed_keeps_to_the_bounds():
    def result(seconds, times):
        ours = {"rows_per_second": 1.0, "rows_per_cpu_second": 1.0, "first_batch_seconds": seconds}
        return {"seed": 1, "ours": ours, "times": times, "cpu_times": times}

    assert array_seeds.is_good({"results": [result(0.3, 3.0)]})
    assert not array_seeds.is_good({"results": [result(0.3, 3.0), result(0.4, 3.0)]})
    assert not array_seeds.is_good({"results": [result(0.3, 2.9), result(0.3, 3.0)]})
    report = {"results": [result(0.3, 2.9), result(0.3, 4.9), result(0.3, 4.8)]}
    assert "2.90" in array_seeds.table(report)
    assert "4.80" in array_seeds.table(report)


def test_folders_of_small_files_are_projected_along_a_line():
    def result(files, seconds):
        return {"files": files, **{name: {"median": seconds} for name in small_files._STEPS}}

    results = [result(2_000, 0.3), result(20_000, 2.1)]
    projected = small_files._projected(results)
    assert projected["describing"] == pytest.approx(20.1)
    report = {"results": results, "projected": projected}
    assert "200,000 files, projected" in small_files.table(report)
    assert not small_files.is_good(report), "2.1 s to the first batch"
    assert small_files.is_good({"results": results[:1], "projected": {}})
