"""The MLflow run of a call of ``run``: whether one is wanted, which one, and who may end it.

MLflow and what belongs to it are imported here only where a run is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.call import Call
from sparkdl_runner.launch.driver.calls.chosen_place import ChosenPlace
from sparkdl_runner.tracking.run.opening.notebook_source import SOURCE_TAG
from sparkdl_runner.tracking.run.opening.store import is_set_up
from sparkdl_runner.tracking.settings import Tracking

if TYPE_CHECKING:
    from sparkdl_runner.launch.driver.stop_request import StopRequest
    from sparkdl_runner.tracking.run.opening.named import NamedRun
    from sparkdl_runner.tracking.run.opening.run_name import RunName
    from sparkdl_runner.tracking.run.tracked_run import TrackedRun


def wanted_tracking(config: RunConfig, call: Call, name: RunName) -> Tracking | None:
    """Which MLflow run is wanted, if one is; its tags say what it is of.

    A function that calls MLflow gets one. Without it, each rank would make a run of its own.
    """
    wanted = config.tracking
    if wanted is False:
        return None
    if wanted is None and not is_set_up(is_used=name.below is not None or call.calls_mlflow):
        return None
    settings = at_place(wanted if isinstance(wanted, Tracking) else Tracking(), call.place)
    redact = Redactor([*secrets_of(), *secrets_for_ranks(config.environment)])
    source = {} if name.source is None else {SOURCE_TAG: name.source}
    return replace(
        settings,
        run_name=None if settings.run_name is None else redact(settings.run_name),
        tags=redact.value({**source, **call.tags, **settings.tags}),
    )


def at_place(settings: Tracking, place: ChosenPlace) -> Tracking:
    """The settings of a run where the function has its own, unless they name another place."""
    chosen_uri = place.tracking_uri if settings.run_id is None else None
    uri = settings.tracking_uri or chosen_uri
    # In another store, an experiment of that name is not the function's.
    experiment = place.experiment if place.tracking_uri in (None, uri) else None
    return replace(settings, tracking_uri=uri, experiment=settings.experiment or experiment)


def secrets_for_ranks(environment: Any) -> list[str]:
    """The secrets of ``RunConfig.environment``, which this process's own environment may lack."""
    return secrets_of(environment) if isinstance(environment, Mapping) else []


def named_run(config: RunConfig, settings: Tracking | None, call: Call) -> NamedRun | None:
    """The run of a training that has a name.

    Raises:
        LaunchError: There is no MLflow to keep the name; or as of ``NamedRun``.
    """
    if config.name is None:
        return None
    secrets = secrets_for_ranks(config.environment)
    if settings is None:
        name = Redactor([*secrets_of(), *secrets]).name(config.name)
        raise LaunchError(
            f"The training has the name {name!r}, which an MLflow run keeps, and MLflow is "
            "not set up here: set MLFLOW_TRACKING_URI to a server or a database that every process "
            "of this training sees, or tracking=Tracking(tracking_uri=...); or leave the name out."
        )
    from sparkdl_runner.tracking.run.opening.named import NamedRun

    return NamedRun(
        settings,
        config.name,
        call.work,
        rerun_finished=config.rerun_finished,
        secrets=secrets,
    )


@contextmanager
def open_run(
    settings: Tracking | None,
    named: NamedRun | None,
    stop: StopRequest,
    secrets: Sequence[str],
    name: RunName,
) -> Iterator[TrackedRun | None]:
    """Opens the run, where one is wanted, and ends it as the block ends.

    It shows none of ``secrets``, and is called ``name`` unless the user names it.

    Raises:
        LaunchError: As of ``TrackedRun.open``.
    """
    if settings is None:
        yield None
        return
    from sparkdl_runner.tracking.run.tracked_run import TrackedRun

    redact = Redactor([*secrets_of(), *secrets])
    tracked = TrackedRun.open(settings, named, secrets, name.redacted(redact))
    ended_by: BaseException | None = None
    try:
        yield tracked
    except BaseException as error:
        ended_by = error
        raise
    finally:
        tracked.close(ended_by, stop.reason)


def watched(tracked: TrackedRun | None, stop: StopRequest) -> AbstractContextManager[Any]:
    """Looks for the tag by which a person ends a tracked training."""
    if tracked is None:
        return nullcontext()
    from sparkdl_runner.tracking.stop_tag import StopTag

    return StopTag(tracked.client, tracked.run_id, stop.make)
