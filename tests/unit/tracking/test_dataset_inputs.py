"""A training's data as MLflow's inputs: what is found, what it is called, and what has changed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.tracking.run.datasets import (
    CONTEXT_TAG,
    _table,
    converters_in,
    describe,
    difference,
)

pytest.importorskip("mlflow")

pytestmark = pytest.mark.one_lane


class Conversion:
    """Rows without a manifest, as petastorm's converter has them."""

    def __init__(self, rows: int) -> None:
        self.cache_dir_url, self.dataset_size = "s3://me:secret@bucket/set", rows

    def make_torch_dataloader(self) -> None:
        """By this a conversion is known."""


class WithManifest(Conversion):
    def open(self) -> tuple[Any, None, None]:
        files = [SimpleNamespace(size_bytes=size) for size in (5, 7)]
        return SimpleNamespace(fingerprint="f" * 40, files=files), None, None


def test_conversions_are_found_once_each_by_what_the_function_calls_them() -> None:
    one, other = Conversion(1), Conversion(2)
    found = converters_in(
        [
            ("the argument 'train'", one),
            ("the variable 'again'", one),
            ("the argument 'lr'", 0.1),
            ("the class 'Conversion'", Conversion),
            ("a value", other),
        ]
    )
    assert found == {"train": one, "data_1": other}


def test_an_input_has_rows_a_digest_and_a_source_without_secrets() -> None:
    plain = describe("train", Conversion(3))
    assert (plain.dataset.name, plain.dataset.digest) == ("train", "rows-3")
    assert json.loads(plain.dataset.profile) == {"num_rows": 3}
    assert plain.dataset.source_type == "spark"
    assert "secret" not in plain.dataset.source
    assert plain.dataset.schema is None
    assert [(tag.key, tag.value) for tag in plain.tags] == [(CONTEXT_TAG, "train")]
    known = describe("x" * 600, WithManifest(3)).dataset
    assert (known.name, known.digest) == ("x" * 500, "f" * 16)
    assert json.loads(known.profile) == {"num_rows": 3, "num_files": 2, "num_bytes": 12}


def test_other_rows_under_the_same_name_are_told() -> None:
    def run(*inputs: Any) -> SimpleNamespace:
        about = SimpleNamespace(dataset_inputs=list(inputs))
        return SimpleNamespace(inputs=about, info=SimpleNamespace(run_id="r1"))

    before = run(describe("train", Conversion(3)), describe("test", Conversion(9)))
    assert difference(before, "train", Conversion(3)) is None
    assert difference(before, "more", Conversion(4)) is None
    assert difference(SimpleNamespace(inputs=None), "train", Conversion(3)) is None
    told = difference(before, "train", Conversion(4))
    assert told is not None
    assert told == (
        "'train' holds other rows than when run r1 began: 3 of digest rows-3 then, 4 of digest "
        "rows-4 now"
    )


def frame(*leaves: Any) -> SimpleNamespace:
    """A DataFrame by what its plan in the JVM says of the tables that it reads."""
    collected = SimpleNamespace(size=lambda: len(leaves), apply=leaves.__getitem__)
    analyzed = SimpleNamespace(collectLeaves=lambda: collected)
    execution = SimpleNamespace(analyzed=lambda: analyzed)
    return SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))


def of_class(simple_name: str, /, **methods: Any) -> SimpleNamespace:
    kind = SimpleNamespace(getSimpleName=lambda: simple_name)
    return SimpleNamespace(getClass=lambda: kind, **methods)


def relation(table: str | None, index: Any) -> SimpleNamespace:
    identifier = SimpleNamespace(unquotedString=lambda: table)
    known = SimpleNamespace(
        isDefined=lambda: table is not None,
        get=lambda: SimpleNamespace(identifier=lambda: identifier),
    )
    return of_class(
        "LogicalRelation",
        catalogTable=lambda: known,
        relation=lambda: SimpleNamespace(location=lambda: index),
    )


def test_a_frame_that_reads_one_table_is_that_table_and_of_delta_its_version() -> None:
    files = of_class("InMemoryFileIndex")
    delta = of_class(
        "TahoeLogFileIndex", snapshotAtAnalysis=lambda: SimpleNamespace(version=lambda: 7)
    )
    assert _table(frame(relation("shop.rows", files))) == {"table_name": "shop.rows"}
    assert _table(frame(relation(None, files))) == {}
    named = {"delta_table_name": "shop.rows", "delta_table_version": 7}
    assert _table(frame(relation("shop.rows", delta))) == named
    assert _table(frame(relation(None, delta))) == {"delta_table_version": 7}
    assert _table(frame(of_class("DataSourceV2Relation", name=lambda: "c.t"))) == {
        "table_name": "c.t"
    }
    assert _table(frame(of_class("LogicalRDD"))) == {}
    assert _table(frame(relation("a", files), relation("b", files))) == {}
