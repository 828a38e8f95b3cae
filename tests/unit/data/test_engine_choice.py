"""Which engine reads, and what becomes of petastorm's arguments."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from sparkdl_runner.data import DatasetError, SparkDatasetConverter
from sparkdl_runner.data.consumers import spark_dataset_converter as dataset_module
from sparkdl_runner.data.consumers.engine_choice import (
    PETASTORM_ONLY,
    SHARED,
    TUNING,
    arrow_arguments,
    choose_engine,
    wanted_columns,
    wanted_tail,
    wants_shuffle,
)
from sparkdl_runner.data.consumers.petastorm import engine
from sparkdl_runner.data.consumers.petastorm.unischema import Unischema
from sparkdl_runner.data.order.shard import resolve_shard


def test_the_sets_of_arguments_do_not_overlap():
    arrow_only = arrow_arguments() - SHARED
    assert not PETASTORM_ONLY & TUNING
    assert not (PETASTORM_ONLY | TUNING) & (arrow_only | SHARED)
    assert {"global_batch_size", "tail", "lanes", "device", "nulls", "pad"} <= arrow_only


def test_arrow_unless_only_petastorm_can():
    assert choose_engine(None, [], unischema=False) == "arrow"
    assert choose_engine(None, ["lanes", "seed", "cache_type"], unischema=False) == "arrow"
    assert choose_engine("petastorm", ["seed", "cache_type"], unischema=False) == "petastorm"
    assert choose_engine(None, [], unischema=True) == "petastorm"
    for name in PETASTORM_ONLY:
        assert choose_engine(None, [name], unischema=False) == "petastorm"


@pytest.mark.parametrize(
    ("engine", "arguments", "unischema", "error", "message"),
    [
        (None, ["shufle"], False, TypeError, "argument 'shufle'; did you mean 'shuffle'?"),
        (None, ["zzz"], False, TypeError, "unexpected keyword argument 'zzz'."),
        (None, ["manifest"], False, TypeError, "unexpected keyword argument 'manifest'"),
        ("spark", [], False, ValueError, "engine must be 'arrow' or 'petastorm', not 'spark'"),
        ("arrow", ["predicate"], False, TypeError, "predicate is petastorm's own"),
        ("arrow", [], True, ValueError, "only engine='petastorm' can read"),
        ("petastorm", ["lanes"], False, TypeError, "lanes is known to engine='arrow' only"),
        (None, ["lanes", "filters"], False, TypeError, "(filters chose it)"),
    ],
)
def test_arguments_that_do_not_fit(engine, arguments, unischema, error, message):
    with pytest.raises(error, match=re.escape(message)):
        choose_engine(engine, arguments, unischema=unischema)


def test_shuffling_is_switched_off_as_in_petastorm():
    assert wants_shuffle({}, 0)
    assert not wants_shuffle({"shuffle_row_groups": False}, 0)
    assert wants_shuffle({"shuffle_row_groups": False}, 100)
    assert wants_shuffle({"shuffle_row_groups": False, "shuffle": True}, 0)
    assert not wants_shuffle({"shuffle": False}, 100)


def test_columns_by_name_and_by_petastorms_patterns():
    names = ["id", "feature_1", "feature_2"]
    assert wanted_columns({}, names) is None
    assert wanted_columns({"columns": ("id",)}, names) == ["id"]
    assert wanted_columns({"schema_fields": ["feature_.*", "id"]}, names) == names
    assert wanted_columns({"schema_fields": ["feature"]}, ["feature"]) == ["feature"]
    with pytest.raises(ValueError, match="did you mean 'feature_1'"):
        wanted_columns({"schema_fields": ["feature_3"]}, names[:2])
    with pytest.raises(TypeError, match="say the same"):
        wanted_columns({"columns": [], "schema_fields": []}, names)


def test_a_shard_is_the_rank_or_as_given(monkeypatch):
    for name in ("RANK", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert resolve_shard(None, None) == (0, 1)
    assert resolve_shard(2, 3) == (2, 3)
    for bad in [(1, None), (None, 2)]:
        with pytest.raises(ValueError, match="go together"):
            resolve_shard(*bad)
    for bad in [(3, 3), (-1, 3)]:
        with pytest.raises(ValueError, match=r"cur_shard is -?[13]; expected 0 "):
            resolve_shard(*bad)


class FakeWorld:
    rank, size = 1, 4


def test_a_shard_that_disagrees_with_the_rank_is_an_error(monkeypatch):
    monkeypatch.setattr("sparkdl_runner.rank.world.in_worker", lambda: True)
    monkeypatch.setattr("sparkdl_runner.rank.world.current_world", FakeWorld)
    assert resolve_shard(None, None) == (1, 4)
    assert resolve_shard(1, 4) == (1, 4)
    with pytest.raises(ValueError, match=r"which is rank 1 of 4: .* Leave both out"):
        resolve_shard(0, 4)


@pytest.mark.parametrize(
    ("ranks", "arguments", "tail"),
    [
        (None, {"batch_size": 4, "num_epochs": 1}, "uneven"),
        (None, {"batch_size": 4, "num_epochs": None}, "wrap"),
        (4, {"batch_size": 4, "num_epochs": None}, "drop"),
        (4, {"batch_size": 30, "num_epochs": 1}, "uneven"),
        (4, {"global_batch_size": 120, "num_epochs": None}, "wrap"),
        # One rank that is left goes on as more of them began,
        (1, {"global_batch_size": 16, "num_epochs": 1}, "drop"),
        # and one that reads all rows by itself is not sharded.
        (4, {"batch_size": 4, "num_epochs": 1, "cur_shard": 0, "shard_count": 1}, "uneven"),
    ],
)
def test_the_tail_follows_from_shards_rows_and_epochs(monkeypatch, ranks, arguments, tail):
    monkeypatch.setattr("sparkdl_runner.rank.world.in_worker", lambda: ranks is not None)
    here = type("World", (), {"rank": 0, "size": ranks})
    monkeypatch.setattr("sparkdl_runner.rank.world.current_world", here)
    assert wanted_tail(arguments, 100) == tail


def test_what_the_arrow_loader_is_given(monkeypatch):
    seen = {}

    class Recorder:
        def __init__(self, manifest, filesystem, directory, **arguments):
            seen.update(arguments)

        def close(self):
            seen["closed"] = True

    class FakeManifest:
        rows = 0
        schema = type("Schema", (), {"names": ["id", "x"]})

    monkeypatch.setattr(
        "sparkdl_runner.data.batches.loader.ArrowLoader.__init__", Recorder.__init__
    )
    monkeypatch.setattr("sparkdl_runner.data.batches.loader.ArrowLoader.close", Recorder.close)
    monkeypatch.setattr(dataset_module, "choose_engine", lambda *args, **kwargs: "arrow")
    converter = SparkDatasetConverter("file:///x", [], 0, manifest=FakeManifest())
    with converter.make_torch_dataloader(
        num_epochs=2, schema_fields=["x"], results_queue_size=5, tail="pad"
    ):
        pass
    expected = {"batch_size": 32, "num_epochs": 2, "columns": ["x"], "tail": "pad"}
    expected["converted"] = None
    assert seen == {**expected, "workers_count": None, "shuffle": True, "closed": True}
    seen.clear()
    with converter.make_torch_dataloader(global_batch_size=64, shuffle=False):
        pass
    assert (seen["batch_size"], seen["global_batch_size"]) == (None, 64)
    assert seen["shuffle"] is False
    with pytest.raises(TypeError, match="returns a context manager"):
        iter(converter.make_torch_dataloader())


def test_a_pickled_schema_needs_trust(monkeypatch):
    monkeypatch.setattr(
        "sparkdl_runner.data.consumers.petastorm.engine.require_petastorm", lambda: None
    )
    converter = SparkDatasetConverter(
        "file:///x", [], 0, unischema=Unischema(fields={}, problem="it is no schema")
    )
    with pytest.raises(DatasetError, match="pass trust_unischema=True"):
        converter.make_torch_dataloader()
    with pytest.raises(DatasetError, match="pickled petastorm schema"):
        converter.make_torch_dataloader(trust_unischema=False)
    converter.make_torch_dataloader(trust_unischema=True)


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        (None, "or use engine='arrow', which does not run it."),
        ("it is no schema", "or write the data again from a DataFrame: without running it, it is"),
    ],
)
def test_a_refused_schema_comes_with_advice(problem, advice):
    with pytest.raises(DatasetError, match=advice):
        engine.refuse_untrusted("file:///x", problem)


@pytest.mark.parametrize(
    ("cache_type", "message"),
    [
        ("decoded", "keeps the images that engine='arrow' decodes, and this is engine='petastorm'"),
        ("disk", "cache_type is 'disk'; expected one of null, local-disk."),
    ],
)
def test_a_cache_that_petastorm_does_not_have_is_refused_before_it_is_asked(
    monkeypatch, cache_type, message
):
    monkeypatch.setattr(
        "sparkdl_runner.data.consumers.petastorm.engine.require_petastorm", lambda: None
    )
    converter = SparkDatasetConverter("file:///x", [], 0)
    for chosen_by in ({"engine": "petastorm"}, {"filters": [("id", "<", 3)]}):
        with pytest.raises(ValueError, match=re.escape(message)):
            converter.make_torch_dataloader(cache_type=cache_type, **chosen_by)
        converter.make_torch_dataloader(cache_type="local-disk", **chosen_by)


def test_importing_is_light():
    code = """
import sys
import sparkdl_runner.data
heavy = {"torch", "pyspark", "petastorm", "pyarrow", "numpy"} & set(sys.modules)
assert not heavy, heavy
from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter
heavy = {"torch", "pyspark", "petastorm"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_names_what_it_has():
    import sparkdl_runner.data as package

    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    assert dir(package) == package.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
