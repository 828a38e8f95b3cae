"""The parameters, data sets and tags of a run that are copied to the pages of its models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mlflow.entities import Metric

from sparkdl_runner.tracking.run.model_pages import complete_models


class Client:
    """A store with one run, whose models were logged after steps 0 (none), 5 and 3."""

    def __init__(self, *data: str) -> None:
        self.params: dict[str, Any] = {}
        self.metrics: dict[str, tuple[float, int, str | None]] = {}
        self.tags: dict[str, Any] = {}
        sets = [
            SimpleNamespace(dataset=SimpleNamespace(name=one, digest=f"{one}1")) for one in data
        ]
        steps = {"last": 0, "of 5": 5, "of 3": 3}
        self._run = SimpleNamespace(
            inputs=SimpleNamespace(dataset_inputs=sets) if data else None,
            outputs=SimpleNamespace(
                model_outputs=[SimpleNamespace(model_id=m, step=s) for m, s in steps.items()]
            ),
            data=SimpleNamespace(
                params={"lr": "0.1", "known": "1", "long": "x" * 5001, "fits": "x" * 5000},
                metrics={"loss": 1, "own": 1, "late": 1, "system/gpu": 1, "samples_per_second": 1},
            ),
        )

    def get_run(self, run_id: str) -> Any:
        return self._run

    def get_logged_model(self, model_id: str) -> Any:
        own = Metric("own", 7.0, 0, 0)
        return SimpleNamespace(params={"known": "2"}, metrics=[own] if model_id == "last" else None)

    def log_model_params(self, model_id: str, params: dict[str, str]) -> None:
        self.params[model_id] = sorted(params)

    def get_metric_history(self, run_id: str, name: str) -> list[Metric]:
        if name == "late":
            return [Metric(name, 9.0, 90, 9)]
        # Two values of step 5, of which the later one counts.
        values = [(0.4, 40, 4), (0.51, 52, 5), (0.5, 51, 5), (0.3, 30, 3), (0.6, 60, 6)]
        return [Metric(name, *value) for value in values]

    def log_batch(self, run_id: str, metrics: list[Metric]) -> None:
        for one in metrics:
            assert one.run_id == run_id == "r1"
            found = (one.value, one.step, one.dataset_name)
            self.metrics[f"{one.model_id}: {one.key}"] = found

    def set_logged_model_tags(self, model_id: str, tags: dict[str, str]) -> None:
        self.tags[model_id] = tags


def test_a_model_gets_what_the_run_knew_at_its_step() -> None:
    client = Client("train")
    complete_models(client, "r1")
    assert list(client.params.values()) == [["fits", "lr"]] * 3
    assert client.metrics == {
        "last: loss": (0.6, 6, "train"),
        "last: late": (9.0, 9, "train"),
        "of 5: loss": (0.51, 5, "train"),
        "of 5: own": (0.51, 5, "train"),
        "of 3: loss": (0.3, 3, "train"),
        "of 3: own": (0.3, 3, "train"),
    }
    assert client.tags["of 3"] == {"sparkdl_runner.data.train": "train1"}


def test_of_several_data_sets_nobody_knows_which_a_metric_is_of() -> None:
    client = Client("train", "test")
    complete_models(client, "r1")
    assert {name for _, _, name in client.metrics.values()} == {None}
    assert client.tags["last"] == {
        "sparkdl_runner.data.train": "train1",
        "sparkdl_runner.data.test": "test1",
    }
    none = Client()
    complete_models(none, "r1")
    assert none.metrics["of 3: loss"] == (0.3, 3, None)
    assert none.tags == {}
