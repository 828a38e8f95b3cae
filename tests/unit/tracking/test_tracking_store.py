"""In a rank, one store is ours: the training's, by whatever URI it is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from mlflow.tracking.registry import StoreRegistry

from sparkdl_runner.tracking.rank import tracking_store
from sparkdl_runner.tracking.rank_run import RankRun

RUN = RankRun(
    run_id="r",
    run_name="n",
    experiment_id="1",
    artifact_uri="file:///a",
    tracking_uri="",
    given_uri="",
    is_named=False,
    store_is_elsewhere=False,
    other_ranks="ignore",
    rank=0,
    host="h",
    folder="/f",
)


def build_theirs(store_uri: str, artifact_uri: str | None = None, **_: Any) -> str:
    return f"theirs: {store_uri}"


@pytest.mark.parametrize(
    ("uri", "same", "other"),
    [
        ("http://h:5000", "http://h:5000/", "http://h:5001"),
        ("https://me:pw@h/base/", "https://h/base", "https://h"),
        ("sqlite:////x.db", "sqlite:////x.db", "sqlite:////y.db"),
        ("postgresql+psycopg2://h/a", "postgresql+psycopg2://me@h/a", "postgresql://h/a"),
        ("file:///s", "file:///s/", "file:///t"),
        ("/s", "/s/", "/t"),
        ("databricks", "databricks", "databricks://profile"),
        ("databricks://profile", "databricks://profile", "databricks"),
    ],
)
def test_only_the_trainings_uri_gets_our_store(uri: str, same: str, other: str) -> None:
    registry = StoreRegistry("mlflow.tracking_store")
    for scheme in ("http", "https", "sqlite", "postgresql", "file", "", "databricks"):
        registry.register(scheme, build_theirs)
    run = dataclasses.replace(RUN, tracking_uri=uri)
    tracking_store._register(run, registry, lambda build: ("ours", build()))

    def store(uri: str) -> Any:
        return registry.get_store_builder(uri)(store_uri=uri, artifact_uri=None)

    assert store(uri) == ("ours", f"theirs: {uri}")
    assert store(same) == ("ours", f"theirs: {same}")
    assert store(other) == f"theirs: {other}"
