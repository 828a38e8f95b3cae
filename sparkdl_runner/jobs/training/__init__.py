"""A training that its settings describe: checked, given its data, and run once or often."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from sparkdl_runner.base.filesystem import join_url, redact
from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.errors import ConfigError, NotPicklableError
from sparkdl_runner.jobs.spark import storage
from sparkdl_runner.jobs.spark.session import is_shared, spark_session
from sparkdl_runner.jobs.training import mlflow_run
from sparkdl_runner.jobs.training.arguments import takes
from sparkdl_runner.jobs.training.data import is_read_in_place, open_source, use_cache
from sparkdl_runner.jobs.training.early_workers import start_early
from sparkdl_runner.jobs.training.of_function import OfFunction
from sparkdl_runner.jobs.training.of_model import OfModel
from sparkdl_runner.jobs.training.phases import Phases
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.launch.agent.spares.pool import end_spares
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.driver.calls.call import pack, work_of
from sparkdl_runner.launch.driver.calls.chosen_place import chosen_place
from sparkdl_runner.launch.driver.mlflow_run import at_place, secrets_for_ranks
from sparkdl_runner.launch.driver.spark import checks, slots
from sparkdl_runner.launch.driver.spark.allocation import is_dynamic
from sparkdl_runner.launch.driver.spark.context import (
    is_spark_connect,
    require_spark_context,
    settings_of,
)
from sparkdl_runner.launch.driver.spark.task_shape import task_shape
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.runner import DistributedRunner
from sparkdl_runner.tracking.settings import Tracking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkdl_runner.tracking.run.opening.named import NamedRun

CHECKPOINT_URL_TAG = "sparkdl_runner.checkpoint_url"
# An example's JVM lives for seconds: it gains nothing from its optimizing compiler, which takes a
# third of the processor time, nor from several threads that collect garbage.
_EXAMPLE_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A training that is ready to run."""

    settings: TrainSettings
    work: OfFunction | OfModel
    """The work of each rank."""
    data: Mapping[str, Any]
    """Converters, by the argument's name."""
    spark: SparkSession | None
    resumed_url: str | None
    """The checkpoints of the MLflow run that is resumed."""
    phases: Phases
    """How long the preparation took."""
    keeps_spares: bool = True
    """Whether spare workers may wait for the next run of this job."""
    finished: NamedRun | None = None
    """The run of a training of this name that has finished, so that there is nothing to do."""

    def run(
        self,
        hyperparameters: Mapping[str, Any],
        tracking: Tracking | Literal[False] | None,
        reports: Sequence[Reports] = (),
        spare_seconds: float | None = None,
    ) -> tuple[Any, str | None]:
        """Runs it once.

        Args:
            hyperparameters: The function's.
            tracking: Of the run.
            reports: Who else takes what the ranks report.
            spare_seconds: See ``RunConfig``; the settings' own comes first, and a session that
                others use gets none.

        Returns:
            What rank 0 returned, and the id of the MLflow run, or None.
        """
        if self.finished is not None:
            asked = self.work.parameters(hyperparameters)  # Data are not converted for it.
            return self.finished.returned(asked, {}), self.finished.run_id
        arguments = {**self.data, **self.work.arguments(hyperparameters)}
        checkpoint_url = self.resumed_url or self._new_checkpoint_url()
        if checkpoint_url is not None:
            arguments["checkpoint_url"] = checkpoint_url
            if tracking:
                tags = {**tracking.tags, CHECKPOINT_URL_TAG: checkpoint_url}
                tracking = dataclasses.replace(tracking, tags=tags)
        try:
            pack(self.work.main, **arguments)
        except NotPicklableError as error:
            raise ConfigError(str(error)) from None
        config = self.settings.run_config.build()
        if config.spare_seconds is not None or not self.keeps_spares:
            spare_seconds = config.spare_seconds
        runner = DistributedRunner(
            num_proc=self.settings.num_proc,
            backend=self.settings.backend,
            run_config=dataclasses.replace(
                config,
                spare_seconds=spare_seconds,
                tracking=tracking,
                name=self.settings.name,
                rerun_finished=self.settings.rerun_finished,
                events=self.settings.events,
            ),
        )
        runner.reports += reports
        runner.run_name = self.work.run_name
        written = self.settings.model_dump(mode="json", exclude_unset=True)
        try:
            if self.settings.script_place is None:
                main: Callable[..., Any] = self.work.main
                value = runner.run(main, **arguments)
            else:
                value = None
                runner.run_script(**self.settings.script_arguments())
        finally:
            if runner.mlflow_run_id is not None:
                parameters = self.work.parameters(hyperparameters)
                secrets = secrets_for_ranks(runner.run_config.environment)
                mlflow_run.describe(runner.mlflow_run_id, parameters, written, secrets)
        return value, runner.mlflow_run_id

    def _new_checkpoint_url(self) -> str | None:
        """A new folder. In another training's, this one would go on where that one ended."""
        parent = self.settings.checkpoint_url
        if parent is None:
            return None
        begin = self.settings.name or time.strftime("training-%Y%m%d-%H%M%S")
        secrets = [*secrets_of(), *secrets_for_ranks(self.settings.run_config.environment)]
        name = f"{Redactor(secrets).name(begin)}-{uuid.uuid4().hex[:8]}"
        return join_url(storage.qualified(parent, self.spark), name)


@contextmanager
def prepared(
    settings: TrainSettings, searched: Mapping[str, Sequence[Any]] | None = None
) -> Iterator[Training]:
    """Checks everything, starts Spark where it is needed, and converts the data.

    What was converted is deleted at the end, and the session that was started is stopped.

    Args:
        settings: Of the training.
        searched: Hyperparameters that the training will be given besides, and values for each.

    Raises:
        ConfigError: Something that the settings name is not there, or does not fit. No task has
            run then.
    """
    phases = Phases()
    work = OfFunction(settings) if settings.model is None else OfModel(settings)
    searched = searched or {}
    work.check(searched)
    converts = (
        work.example_data is not None
        or settings.validation is not None
        or not all(is_read_in_place(source, None) for source in settings.data.values())
    )
    needs_spark = settings.num_proc >= 0 or converts
    # They end with the session. In one that others use, they would wait for nobody.
    keeps_spares = not is_shared()
    with ExitStack() as stack:
        stack.callback(end_spares)  # Those of ranks on this host.
        # MLflow takes as long to import as Java to start, so both are done at once.
        background = stack.enter_context(ThreadPoolExecutor(1))
        mlflow_ready = background.submit(_prepare_mlflow, settings, work)
        resumed_url = None
        if resumed := settings.resumed:
            mlflow_ready.result()
            resumed_url = _resumed_url(settings, resumed, work.main)
        elif settings.name is not None:
            mlflow_ready.result()
            named = _named_run(settings, work)
            if named.is_finished:
                phases.end("check settings")
                yield Training(
                    settings=settings,
                    work=work,
                    data={},
                    spark=None,
                    resumed_url=None,
                    phases=phases,
                    finished=named,
                )
                return
            resumed_url = named.tag(CHECKPOINT_URL_TAG)
        checkpoint_url = resumed_url or settings.checkpoint_url
        names = [*settings.data, *([] if checkpoint_url is None else ["checkpoint_url"])]
        work.check_names(names, searched)
        phases.end("check settings")
        spark = None
        if needs_spark:
            options = _EXAMPLE_JVM_OPTIONS if work.example_data is not None else ""
            slots_here = abs(settings.num_proc)
            spark = stack.enter_context(
                spark_session("train", slots=slots_here, jvm_options=options)
            )
        mlflow_ready.result()
        phases.end("start Spark" if needs_spark else "start MLflow")
        if settings.num_proc >= 0:
            _check_slots(settings)
        if checkpoint_url is not None:
            storage.check_ranks_may_write(storage.qualified(checkpoint_url, spark))
        # All are opened before the first is converted.
        if work.example_data is not None and spark is not None:
            opened: dict[str, Any] = dict(work.example_data(spark))
        elif settings.validation is not None and spark is not None:
            opened = {name: source.read(spark) for name, source in settings.data.items()}
        else:
            opened = {name: open_source(source, spark) for name, source in settings.data.items()}
        work.check_data(opened)
        if settings.cache_url is not None and spark is not None:
            use_cache(spark, settings.cache_url)
        if settings.num_proc > 0 and converts and keeps_spares and not is_spark_connect():
            background.submit(start_early, settings)
        data = work.converted(opened, spark, stack)
        phases.end("convert data")
        yield Training(
            settings=settings,
            work=work,
            data=data,
            spark=spark,
            resumed_url=resumed_url,
            phases=phases,
            keeps_spares=keeps_spares,
        )


def _prepare_mlflow(settings: TrainSettings, work: OfFunction | OfModel) -> None:
    wanted, tracking = settings.wanted_tracking, tracking_of(settings, work)
    # The function may choose a store: then what the job adds to the run goes there, too.
    if wanted or (wanted is None and tracking.tracking_uri is not None):
        mlflow_run.use(tracking)


def tracking_of(settings: TrainSettings, work: OfFunction | OfModel) -> Tracking:
    """The store and the experiment in which the runner opens the MLflow run."""
    place = chosen_place(work.main, work.parameters(settings.hyperparameters))
    return at_place(settings.wanted_tracking or Tracking(), place)


def _named_run(settings: TrainSettings, work: OfFunction | OfModel) -> NamedRun:
    """The run of this name, as the runner will find it.

    Raises:
        LaunchError: Another driver runs it, or it trains something else.
    """
    from sparkdl_runner.tracking.run.opening.named import NamedRun

    tracking, name = tracking_of(settings, work), settings.name or ""
    rerun, secrets = settings.rerun_finished, secrets_for_ranks(settings.run_config.environment)
    return NamedRun(tracking, name, work_of(work.main), rerun_finished=rerun, secrets=secrets)


def _resumed_url(
    settings: TrainSettings, tracking: Tracking, main: Callable[..., Any]
) -> str | None:
    """The folder of checkpoints of the resumed run; None if no run is resumed.

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
            f"{CHECKPOINT_URL_TAG}): leave tracking.run_id out, to begin anew."
        )
    if url is not None and not takes(main, "checkpoint_url"):
        raise ConfigError(
            f"the MLflow run {run_id} has checkpoints in {redact(url)}, and {settings.function} "
            "has no argument checkpoint_url to go on from them."
        )
    return url


def _check_slots(settings: TrainSettings) -> None:
    """Waits until all ranks can have a slot, before data is converted.

    Raises:
        LaunchError: They cannot, or not in time.
    """
    config, backend = settings.run_config.build(), get_backend(settings.backend)
    if is_spark_connect():
        from sparkdl_runner.launch.driver.connect.launcher import ConnectLauncher

        stop = StopRequest()
        ConnectLauncher(settings.num_proc, backend, config, stop).wait_for_slots(config, stop)
        return
    context = require_spark_context()
    checks.check(context, backend, config)
    if not is_dynamic(settings_of(context).get):  # Else executors come once ranks wait for them.
        shape = task_shape(context, config, settings.num_proc)
        slots.wait_for_slots(context, settings.num_proc, config, shape=shape)
