"""Plain MLflow calls on rank 0: they land in the run of the training, by way of the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.rank.active_run import described, make_active
from sparkdl_runner.tracking.rank.recorder import Recorder
from sparkdl_runner.tracking.rank.training_store import replace_store
from sparkdl_runner.tracking.rank_run import NAME_TAG, RankRun
from sparkdl_runner.tracking.report.performance import OF_THE_RUN


def join(run: RankRun, recorder: Recorder) -> None:
    """Makes the run the active one, and what is logged to it go to the recorder."""

    def take_name(name: str) -> None:
        if not run.is_named:
            recorder.add([["tag", NAME_TAG, name]])

    telling = partial(_telling, run=run, recorder=recorder, take_name=take_name)
    replace_store(run, telling)
    make_active(run, take_name)


def _telling(
    kind: Any, *, run: RankRun, recorder: Recorder, take_name: Callable[[str], None]
) -> type:
    """A store's class, but with what is logged to the run going to the recorder."""
    from mlflow.utils.async_logging.run_operations import RunOperations

    ours, info = run.run_id, described(run).info

    class TellingStore(kind):
        """Sends metrics, parameters and tags of one run by way of the driver."""

        def update_run_info(
            self, run_id: str, run_status: Any, end_time: Any, run_name: str | None
        ) -> Any:
            if run_id != ours:
                return super().update_run_info(run_id, run_status, end_time, run_name)
            # How the run ends, and when, is for the driver to say.
            if run_name:
                take_name(run_name)
            return info

        def log_metric(self, run_id: str, metric: Any) -> None:
            if run_id != ours:
                super().log_metric(run_id, metric)
                return
            recorder.add([_metric(metric)])

        def log_param(self, run_id: str, param: Any) -> None:
            if run_id != ours:
                super().log_param(run_id, param)
                return
            recorder.add([["param", str(param.key), str(param.value)]])

        def set_tag(self, run_id: str, tag: Any) -> None:
            if run_id != ours:
                super().set_tag(run_id, tag)
                return
            recorder.add([["tag", str(tag.key), str(tag.value)]])

        def log_batch(
            self,
            run_id: str,
            metrics: Sequence[Any] = (),
            params: Sequence[Any] = (),
            tags: Sequence[Any] = (),
        ) -> None:
            if run_id != ours:
                super().log_batch(run_id, metrics=metrics, params=params, tags=tags)
                return
            entries: list[Entry] = [_metric(one) for one in metrics if not _is_of_a_run(one)]
            entries += [["param", str(param.key), str(param.value)] for param in params]
            entries += [["tag", str(tag.key), str(tag.value)] for tag in tags]
            recorder.add(entries)

        def log_outputs(self, run_id: str, models: Sequence[Any]) -> None:
            if run_id == ours:
                # MLflow says 0 where nobody has said a step, as if training had not begun.
                newest = recorder.newest_step
                models = [type(one)(one.model_id, one.step or newest) for one in models]
            super().log_outputs(run_id, models)

        def log_metric_async(self, run_id: str, metric: Any) -> Any:
            self.log_metric(run_id, metric)
            return RunOperations(operation_futures=[])

        def log_param_async(self, run_id: str, param: Any) -> Any:
            self.log_param(run_id, param)
            return RunOperations(operation_futures=[])

        def set_tag_async(self, run_id: str, tag: Any) -> Any:
            self.set_tag(run_id, tag)
            return RunOperations(operation_futures=[])

        def log_batch_async(
            self,
            run_id: str,
            metrics: Sequence[Any] = (),
            params: Sequence[Any] = (),
            tags: Sequence[Any] = (),
        ) -> Any:
            self.log_batch(run_id, metrics, params, tags)
            return RunOperations(operation_futures=[])

    return TellingStore


def _is_of_a_run(metric: Any) -> bool:
    """Whether MLflow repeats for a model what says how fast its training was."""
    has_model = getattr(metric, "model_id", None) is not None
    return has_model and bool(metric.key.startswith(OF_THE_RUN))


def _metric(metric: Any) -> Entry:
    extra = {
        name: value
        for name in ("model_id", "dataset_name", "dataset_digest")
        if (value := getattr(metric, name, None)) is not None
    }
    timestamp, step = int(metric.timestamp), int(metric.step or 0)
    return ["metric", str(metric.key), float(metric.value), timestamp, step, extra]
