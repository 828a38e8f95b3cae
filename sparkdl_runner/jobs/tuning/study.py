"""Optuna's study of a search: made anew, or taken from its storage to go on with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import ConfigError, RunnerError
from sparkdl_runner.jobs.training import named_things
from sparkdl_runner.jobs.tuning.settings import SearchSettings

# A trial whose driver has not been heard for so long is tried again by the next one.
HEARTBEAT_SECONDS, LOST_SECONDS = 10, 30
METRIC_ATTRIBUTE = "metric"


def open_study(
    search: SearchSettings, *, in_parallel: bool, lost: Callable[[Any, Any], None]
) -> Any:
    """Opens the study: that of the storage, if it is there already.

    Args:
        search: Its settings.
        in_parallel: Whether several trials run at once.
        lost: Called with the study and a trial whose driver was lost, which is tried again.

    Raises:
        ConfigError: The sampler, the pruner or the storage is none, or the study is of another
            metric, direction or search space.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Trials that run count as bad ones, so that those at once are not drawn at one place.
    with _experiments():
        sampler = optuna.samplers.TPESampler(seed=search.seed, constant_liar=in_parallel)
    if search.sampler is not None:
        sampler = _thing(search.sampler, "tune.sampler", optuna.samplers.BaseSampler)
    pruner = optuna.pruners.NopPruner()
    if search.pruner is not None:
        pruner = _thing(search.pruner, "tune.pruner", optuna.pruners.BasePruner)
    arguments: dict[str, Any] = {
        "direction": search.direction,
        "sampler": sampler,
        "pruner": pruner,
    }
    if search.storage is None:
        return optuna.create_study(**arguments)
    try:
        storage = _storage(search.storage, lost)
        study = optuna.create_study(
            storage=storage, study_name=search.study_name, load_if_exists=True, **arguments
        )
    except Exception as error:
        raise ConfigError(
            f"tune.storage: the study {search.study_name!r} cannot be opened in "
            f"{Redactor()(search.storage)}: {_reason(error)}."
        ) from error
    _check_same(study, search)
    if study.get_trials(deepcopy=False):
        study.sampler.reseed_rng()  # With its seed it would draw the same values once more.
    study.set_user_attr(METRIC_ATTRIBUTE, search.metric)
    return study


@contextmanager
def storage_must_answer(search: SearchSettings, run_id: str) -> Iterator[None]:
    """Says in a sentence where the storage fails in the middle of a search.

    Raises:
        RunnerError: It did.
    """
    import optuna
    import sqlalchemy

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        raise RunnerError(
            f"The storage of the study {search.study_name!r}, {Redactor()(search.storage or '')}, "
            f"has failed: {_reason(error)}. What the trials logged is below the MLflow run "
            f"{run_id}. Once the storage is back, the same call goes on with the study."
        ) from error


def _storage(url: str, lost: Callable[[Any, Any], None]) -> Any:
    import optuna

    def lost_and_tried_again(study: Any, trial: Any) -> None:
        lost(study, trial)
        optuna.storages.RetryHeartbeatStaleTrialCallback()(study, trial)

    with _experiments():
        return optuna.storages.RDBStorage(
            url,
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=LOST_SECONDS,
            heartbeat_stale_trial_callback=lost_and_tried_again,
        )


@contextmanager
def _experiments() -> Iterator[None]:
    """Lets what Optuna calls experimental be used without a warning."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _thing(written: Any, key: str, kind: type) -> Any:
    thing = named_things.thing(written, key)
    if not isinstance(thing, kind):
        raise ConfigError(f"{key}: {written} makes a {type(thing).__name__}; it takes a {kind}.")
    return thing


def _check_same(study: Any, search: SearchSettings) -> None:
    """Raises a ConfigError if the study that is there is about something else."""
    stored = {
        "metric": study.user_attrs.get(METRIC_ATTRIBUTE, search.metric),
        "direction": study.direction.name.lower(),
    }
    for name, value in stored.items():
        if value != getattr(search, name):
            raise ConfigError(
                f"tune.{name} is {getattr(search, name)!r}, and the study {search.study_name!r} "
                f"was begun with {value!r}: give another study_name, or that {name}."
            )
    _check_space(study, search)


def _check_space(study: Any, search: SearchSettings) -> None:
    """Raises a ConfigError if Optuna would not let a trial draw from the search space."""
    import optuna

    probe = optuna.create_study().ask()
    for name, choice in search.search_space.items():
        choice.draw(probe, name)
    for trial in study.get_trials(deepcopy=False):
        for name, now in probe.distributions.items():
            before = trial.distributions.get(name, now)
            try:
                optuna.distributions.check_distribution_compatibility(before, now)
            except ValueError:
                raise ConfigError(
                    f"tune.search_space.{name} is {now}, and the study {search.study_name!r} was "
                    f"begun with {before}: a range may become another, of the same kind, and "
                    "choices stay the same. Give another study_name, or the earlier choices."
                ) from None


def _reason(error: Exception) -> str:
    return Redactor()(first_line(error)).rstrip(".")
