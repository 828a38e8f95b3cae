"""MLflow's own calls on rank 0: they land in the run of the training, by way of the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.rank.active_run import described, make_active
from sparkdl_runner.tracking.rank.recorder import Recorder
from sparkdl_runner.tracking.rank.tracking_store import answer_calls, replace_store
from sparkdl_runner.tracking.rank_run import NAME_TAG, RankRun
from sparkdl_runner.tracking.report.performance import OF_THE_RUN


def set_up(run: RankRun, recorder: Recorder) -> None:
    """Makes the run the active one, and what is logged to it go to the recorder."""

    def take_name(name: str) -> None:
        if not run.is_named:
            recorder.add([["tag", NAME_TAG, name]])

    replace_store(run, lambda kind: recording_store(kind, run, recorder, take_name))
    make_active(run, take_name)


def recording_store(
    kind: Any, run: RankRun, recorder: Recorder, take_name: Callable[[str], None]
) -> type:
    """A store's class, but with what is logged to the run going to the recorder."""
    from mlflow.utils.async_logging.run_operations import RunOperations

    info = described(run).info

    def log_batch(
        run_id: str,
        metrics: Sequence[Any] = (),
        params: Sequence[Any] = (),
        tags: Sequence[Any] = (),
    ) -> None:
        entries = [_metric(metric) for metric in metrics if not _is_of_a_run(metric)]
        entries += [["param", str(param.key), str(param.value)] for param in params]
        entries += [["tag", str(tag.key), str(tag.value)] for tag in tags]
        recorder.add(entries)

    def update_run_info(run_id: str, run_status: Any, end_time: Any, run_name: str | None) -> Any:
        # How the run ends, and when, is for the driver to say.
        if run_name:
            take_name(run_name)
        return info

    class RecordingStore(kind):
        """Sends metrics, parameters and tags of one run by way of the driver."""

        def log_outputs(self, run_id: str, models: Sequence[Any]) -> None:
            if run_id == run.run_id:
                # Without a step MLflow takes 0, as if training had not begun.
                newest = recorder.newest_step
                models = [type(model)(model.model_id, model.step or newest) for model in models]
            super().log_outputs(run_id, models)

    def is_ours(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        return bool((args[0] if args else options["run_id"]) == run.run_id)

    answers: dict[str, Callable[..., Any]] = {
        "log_metric": lambda run_id, metric: recorder.add([_metric(metric)]),
        "log_param": lambda run_id, param: log_batch(run_id, params=[param]),
        "set_tag": lambda run_id, tag: log_batch(run_id, tags=[tag]),
        "log_batch": log_batch,
    }

    def at_once(answer: Callable[..., Any]) -> Callable[..., Any]:
        """The recorder sends in the background anyway."""

        def call(*args: Any, **options: Any) -> Any:
            answer(*args, **options)
            return RunOperations(operation_futures=[])

        return call

    answers |= {f"{name}_async": at_once(answer) for name, answer in answers.items()}
    answer_calls(RecordingStore, {**answers, "update_run_info": update_run_info}, is_ours)
    return RecordingStore


def _is_of_a_run(metric: Any) -> bool:
    """Whether it is a metric of the run's speed that MLflow copies to a model."""
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
