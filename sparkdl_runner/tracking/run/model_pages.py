"""Adds a run's parameters, metrics and data sets to the pages of its logged models.

A rank cannot do it: its metrics go to the server by way of the driver, later than the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkdl_runner.tracking.report.performance import OF_THE_RUN

DATA_PREFIX = "sparkdl_runner.data."
# The limit for a parameter in MLflow's databases.
_MOST_CHARACTERS = 5000


def complete_models(client: Any, run_id: str) -> None:
    """Adds to each model of a run what the run knows and the model does not.

    A model gets the run's parameters, and of each metric the newest value that is no later than the
    model's own step. Where the run has one data set, the metrics name it. Of several, it is unknown
    which one a metric is of, so they are tags.

    Args:
        client: An ``MlflowClient`` of the run's store.
        run_id: The run, all of which has been delivered.
    """
    run = client.get_run(run_id)
    outputs = getattr(run, "outputs", None)  # MLflow 2 keeps models as files of their run.
    data = (
        [dataset_input.dataset for dataset_input in run.inputs.dataset_inputs] if run.inputs else []
    )
    for output in outputs.model_outputs if outputs else ():
        model = client.get_logged_model(output.model_id)
        params = {
            name: value
            for name, value in run.data.params.items()
            if name not in model.params and len(value) <= _MOST_CHARACTERS
        }
        if params:
            client.log_model_params(output.model_id, params)
        known = {metric.key for metric in model.metrics or ()}
        names = [
            name
            for name in run.data.metrics
            if name not in known and not name.startswith(OF_THE_RUN)
        ]
        metrics = list(_metrics(client, run_id, names, output, data))
        if metrics:
            client.log_batch(run_id, metrics=metrics)
        if data:
            tags = {f"{DATA_PREFIX}{dataset.name}": str(dataset.digest) for dataset in data}
            client.set_logged_model_tags(output.model_id, tags)


def _metrics(
    client: Any, run_id: str, names: list[str], output: Any, data: list[Any]
) -> Iterator[Any]:
    from mlflow.entities import Metric

    (only,) = data if len(data) == 1 else (None,)
    for name in names:
        # A model that was logged without a step is the last one.
        history = [
            metric
            for metric in client.get_metric_history(run_id, name)
            if not output.step or metric.step <= output.step
        ]
        if history:
            last = max(history, key=lambda metric: (metric.step, metric.timestamp))
            yield Metric(
                key=name,
                value=last.value,
                timestamp=last.timestamp,
                step=last.step,
                model_id=output.model_id,
                dataset_name=only.name if only else None,
                dataset_digest=only.digest if only else None,
                run_id=run_id,
            )
