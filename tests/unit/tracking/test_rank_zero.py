"""Metrics of the training's run go to the recorder; those of another run go to MLflow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.entities import Metric, Param, RunTag

from sparkdl_runner.tracking.rank.rank_zero import recording_store
from sparkdl_runner.tracking.rank_run import RankRun

METRIC, PARAM, TAG = Metric("loss", 0.5, 1000, 3), Param("rate", "0.1"), RunTag("by", "me")
CALLS = {
    "log_metric": (METRIC,),
    "log_param": (PARAM,),
    "set_tag": (TAG,),
    "log_batch": ([METRIC], [PARAM], [TAG]),
}
TOLD = {
    "log_metric": [["metric", "loss", 0.5, 1000, 3, {}]],
    "log_param": [["param", "rate", "0.1"]],
    "set_tag": [["tag", "by", "me"]],
}
TOLD["log_batch"] = [entry for entries in TOLD.values() for entry in entries]


def taking(name: str) -> Any:
    """A method that keeps what it is called with."""
    return lambda self, *args, **options: self.taken.append((name, *args, *options.values()))


class Store:
    """Takes what is not the training's."""

    def __init__(self) -> None:
        self.taken: list[tuple[Any, ...]] = []


for method in [name + suffix for name in CALLS for suffix in ("", "_async")]:
    setattr(Store, method, taking(method))


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("suffix", ["", "_async"])
def test_calls_of_both_kinds(name: str, suffix: str) -> None:
    run = RankRun(
        run_id="ours",
        run_name="name",
        experiment_id="1",
        artifact_uri="file:///a",
        tracking_uri="file:///s",
        given_uri="s",
        is_named=False,
        store_is_elsewhere=False,
        other_ranks="ignore",
        rank=0,
        host="h",
        folder="/f",
    )
    told: list[Any] = []
    recorder = SimpleNamespace(add=told.extend)
    store = recording_store(Store, run, recorder, take_name=told.append)()
    call = getattr(store, name + suffix)
    call("ours", *CALLS[name])
    assert told == TOLD[name]
    assert store.taken == []
    call("another", *CALLS[name])
    assert told == TOLD[name]
    assert store.taken == [(name + suffix, "another", *CALLS[name])]
