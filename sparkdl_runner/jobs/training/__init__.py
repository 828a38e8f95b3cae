"""A training that its settings describe: checked, given its data, and run once or often."""

from __future__ import annotations

import dataclasses
import inspect
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from sparkdl_runner.cli.nearest import did_you_mean
from sparkdl_runner.driver import slots
from sparkdl_runner.driver.gpu_scheduling import rank_profile
from sparkdl_runner.driver.spark_context import require_spark_context
from sparkdl_runner.errors import ConfigError, NotPicklableError
from sparkdl_runner.filesystem import join_url, redact
from sparkdl_runner.jobs.spark import storage
from sparkdl_runner.jobs.spark.session import spark_session
from sparkdl_runner.jobs.training import mlflow_run
from sparkdl_runner.jobs.training.entry_point import find_function
from sparkdl_runner.jobs.training.hyperparameters import check_kinds
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.runner import DistributedRunner
from sparkdl_runner.tracking.settings import Tracking
from sparkdl_runner.wire import function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.jobs.spark.source import Source

CHECKPOINT_URL_TAG = "sparkdl_runner.checkpoint_url"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A training that is ready to run."""

    settings: TrainSettings
    main: Callable[..., Any]
    data: Mapping[str, Any]
    """Converters, by the argument's name."""
    spark: SparkSession | None
    resumed_url: str | None
    """The checkpoints of the MLflow run that is gone on with."""

    def run(
        self, hyperparameters: Mapping[str, Any], tracking: Tracking | Literal[False]
    ) -> tuple[Any, str | None]:
        """Runs it once.

        Returns:
            The function's value in rank 0, and the id of the MLflow run, or None.
        """
        arguments = {**self.data, **hyperparameters}
        checkpoint_url = self.resumed_url or self._new_checkpoint_url()
        if checkpoint_url is not None:
            arguments["checkpoint_url"] = checkpoint_url
            if tracking:
                tags = {**tracking.tags, CHECKPOINT_URL_TAG: checkpoint_url}
                tracking = dataclasses.replace(tracking, tags=tags)
        try:
            function.pack(self.main, arguments)
        except NotPicklableError as error:
            raise ConfigError(str(error)) from None
        runner = DistributedRunner(
            num_proc=self.settings.num_proc,
            backend=self.settings.backend,
            config=dataclasses.replace(self.settings.runner.build(), tracking=tracking),
        )
        written = self.settings.model_dump(mode="json", exclude_unset=True)
        try:
            value = runner.run(self.main, **arguments)
        finally:
            if runner.mlflow_run_id is not None:
                mlflow_run.describe(runner.mlflow_run_id, hyperparameters, written)
        return value, runner.mlflow_run_id

    def _new_checkpoint_url(self) -> str | None:
        """A folder of this training alone: it must not go on where another has ended."""
        parent = self.settings.checkpoint_url
        if parent is None:
            return None
        name = time.strftime("training-%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:8]
        return join_url(storage.qualified(parent, self.spark), name)


@contextmanager
def prepared(
    settings: TrainSettings, searched: Mapping[str, Sequence[Any]] | None = None
) -> Iterator[Training]:
    """Checks everything, starts Spark where it is needed, and converts the data.

    What was converted is deleted at the end, and the session that was started is stopped.

    Args:
        settings: Of the training.
        searched: Arguments that the function will be given besides, and values for each.

    Raises:
        ConfigError: Something that the settings name is not there, or does not fit. No task has
            run then.
    """
    main, of_example = _function(settings)
    check_kinds(main, settings.hyperparameters, _place(settings))
    also = list(searched or ())
    for name, values in (searched or {}).items():
        for value in values:
            check_kinds(main, {name: value}, _place(settings), "tune.search_space")
    resumed_url = None
    if settings.tracking:
        mlflow_run.use(settings.tracking)
        resumed_url = _resumed_url(settings, settings.tracking, main)
    if resumed_url is not None and settings.checkpoint_url is None:
        also = [*also, "checkpoint_url"]
    _check_arguments(main, settings, also, of_example)
    needs_spark = (
        settings.num_proc >= 0
        or of_example is not None
        or not all(_stays(source, None) for source in settings.data.values())
    )
    with ExitStack() as stack:
        spark = None
        if needs_spark:
            spark = stack.enter_context(spark_session("train", slots=abs(settings.num_proc)))
        if settings.num_proc >= 0:
            _check_slots(settings)
        checkpoint_url = resumed_url or settings.checkpoint_url
        if checkpoint_url is not None:
            storage.check_ranks_may_write(storage.qualified(checkpoint_url, spark))
        # All are looked at before the first is converted.
        if of_example is not None and spark is not None:
            found: dict[str, Any] = dict(of_example(spark))
        else:
            found = {name: _open(source, spark) for name, source in settings.data.items()}
        if settings.cache_url is not None and spark is not None:
            storage.check_writable(spark, settings.cache_url)
        data = {
            name: stack.enter_context(_converter(one, spark, settings.cache_url))
            for name, one in found.items()
        }
        yield Training(
            settings=settings, main=main, data=data, spark=spark, resumed_url=resumed_url
        )


def _function(settings: TrainSettings) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """What each rank runs and, of an example, what makes its data."""
    if settings.function is not None:
        return find_function(settings.function), None
    from sparkdl_runner.examples import digits

    train = {"horovod": digits.train_with_horovod, "torch": digits.train_with_torch}
    return train[settings.backend], digits.frames


def _place(settings: TrainSettings) -> str:
    """What a person calls the function."""
    return settings.function or f"the example {settings.example}"


def _resumed_url(
    settings: TrainSettings, tracking: Tracking, main: Callable[..., Any]
) -> str | None:
    """Where the run that is gone on with keeps its checkpoints; None where there is none.

    Raises:
        ConfigError: There is no such run, or what it keeps and what is asked for do not fit.
    """
    run_id = tracking.run_id
    if run_id is None:
        return None
    url = mlflow_run.tag(run_id, CHECKPOINT_URL_TAG, tracking.opening_timeout_seconds)
    if url is None and settings.checkpoint_url is not None:
        raise ConfigError(
            f"the MLflow run {run_id} has no checkpoints of this job (no tag "
            f"{CHECKPOINT_URL_TAG}): leave mlflow.run_id out, to begin anew."
        )
    known = _parameters(main)
    if url is not None and known and "checkpoint_url" not in known:
        raise ConfigError(
            f"the MLflow run {run_id} has checkpoints in {redact(url)}, and {settings.function} "
            "has no argument checkpoint_url to go on from them."
        )
    return url


def _check_arguments(
    main: Callable[..., Any], settings: TrainSettings, also: Iterable[str], of_example: object
) -> None:
    names = [*settings.data, *settings.hyperparameters, *also]
    if settings.checkpoint_url is not None:
        names.append("checkpoint_url")
    if of_example is not None:
        names += ["train_data", "test_data"]
    known = _parameters(main)
    for name in names:
        if known and name not in known:
            raise ConfigError(
                f"{_place(settings)} has no argument {name!r}{did_you_mean(name, known)}"
            )
    try:
        function.check_call(main, dict.fromkeys(names))
    except TypeError as error:
        told = str(error).replace("given to run()", "of this configuration")
        raise ConfigError(
            f"{told.rstrip('.')}; its arguments are the keys of data and hyperparameters, and "
            "checkpoint_url where that is given."
        ) from None


def _check_slots(settings: TrainSettings) -> None:
    """Sees to it that all ranks will have a slot, before the first is used to convert data.

    Raises:
        LaunchError: They will not.
    """
    context = require_spark_context()
    slots.check_allocation(context)
    profile = rank_profile(context)
    slots.wait_for_slots(context, settings.num_proc, settings.runner.build(), profile=profile)


def _parameters(main: Callable[..., Any]) -> list[str]:
    """The names of its arguments; none where it may take any."""
    try:
        parameters = inspect.signature(main).parameters.values()
    except (TypeError, ValueError):
        return []  # Some built-in callables have no signature.
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    return [] if takes_any else [one.name for one in parameters]


def _stays(source: Source, spark: SparkSession | None) -> bool:
    """Whether it is read where it is: a folder of Parquet files, and no file and no Delta table."""
    if not source.is_plain or storage.is_file(source.path or "", spark):
        return False
    return spark is None or not storage.exists(spark, f"{source.path}/_delta_log")


def _open(source: Any, spark: SparkSession | None) -> DataFrame | SparkDatasetConverter:
    """A folder of Parquet files as it is; of everything else, a DataFrame."""
    from sparkdl_runner.data import DatasetError, make_spark_converter

    if not _stays(source, spark):
        if spark is None:
            raise ConfigError(f"{source.place} needs Spark to be read.")
        return source.read(spark)  # type: ignore[no-any-return]
    try:
        return make_spark_converter(storage.qualified(source.path, spark))
    except (DatasetError, OSError, ImportError, ValueError) as error:
        raise ConfigError(str(error)) from None


def _converter(found: Any, spark: SparkSession | None, cache_url: str | None) -> Any:
    from sparkdl_runner.data import DatasetError, SparkDatasetConverter, make_spark_converter

    if isinstance(found, SparkDatasetConverter) or spark is None:
        return found
    if cache_url is not None:
        place = storage.qualified(cache_url, spark)
        spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, place)
    try:
        return make_spark_converter(found)
    except (TypeError, ValueError, DatasetError) as error:
        advice = "" if cache_url else " (cache_url says where data is converted to)"
        raise ConfigError(f"{str(error).rstrip('.')}{advice}.") from None
