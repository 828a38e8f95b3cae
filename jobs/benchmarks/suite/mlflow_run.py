"""A report as an MLflow run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_MOST_AT_ONCE = 500  # Servers take no more than 1,000.


def log(report: Mapping[str, Any], experiment: str, files: Sequence[Path]) -> None:
    """Logs medians, worst numbers and ratios as metrics, and the files as artifacts."""
    import mlflow

    mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name=f"benchmark {report['date']}"):
        where = {**report["machine"], **report["versions"]}
        mlflow.log_params({**where, "command": report["command"]})
        mlflow.set_tag("configuration", report["configuration"])
        metrics = list(_metrics(report))
        for first in range(0, len(metrics), _MOST_AT_ONCE):
            mlflow.log_metrics(dict(metrics[first : first + _MOST_AT_ONCE]))
        for file in files:
            mlflow.log_artifact(str(file))


def _metrics(report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for part, one in report["parts"].items():
        for case in one["cases"]:
            for name, figure in case["figures"].items():
                path = "/".join(map(_allowed, (part, case["name"], name)))
                for side, numbers in figure["sides"].items():
                    yield f"{path}/{_allowed(side)}", numbers["median"]
                    yield f"{path}/{_allowed(side)} at worst", numbers["worst"]
                for ours, peers in figure["ratios"].items():
                    for peer, ratio in peers.items():
                        yield f"{path}/{_allowed(ours)} of {_allowed(peer)}", ratio["median"]


def _allowed(text: str) -> str:
    """The letters that MLflow takes in a metric's name."""
    return re.sub(r"[^\w .-]", "_", text)
