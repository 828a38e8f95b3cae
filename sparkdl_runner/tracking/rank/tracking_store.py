"""The training's tracking store, as ranks see it; any other store stays MLflow's own.

MLflow makes a store with the builder that is registered for the scheme of its URI; that is how its
tracking-store plugins work. In a rank, the training's scheme has a builder of ours. The run's URI
keeps its scheme, since MLflow reads more from it than the store: artifacts behind a server
(``mlflow-artifacts:``) need ``http``, and Databricks' models and artifacts need ``databricks``.
A plugin's entry point cannot do this: it would replace the builder of that scheme in every process
of every environment that has this package, and a worker may run from files without entry points.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from sparkdl_runner.base.importing import without_collecting
from sparkdl_runner.tracking.rank_run import RankRun


def is_training_store(run: RankRun, uri: str | None = None) -> bool:
    """Whether a tracking URI, by default MLflow's current one, names the store of the run."""
    from mlflow.tracking import get_tracking_uri

    return _place(uri or get_tracking_uri()) == _place(run.tracking_uri)


def replace_store(run: RankRun, derive: Callable[[type], type]) -> None:
    """Makes the training's store one of a class of ours.

    Args:
        run: The training's run.
        derive: Makes a class with this rank's own writing methods from the store's class.
    """
    from mlflow.tracking._model_registry.utils import _get_store_registry
    from mlflow.tracking._tracking_service.utils import _tracking_store_registry

    unreachable = _unreachable(run) if run.store_is_elsewhere else None

    def build_tracking(build: Callable[[], Any]) -> Any:
        store = unreachable or build()
        # MLflow's checks of a store's class still hold.
        store.__class__ = derive(type(store))
        return store

    _register(run, _tracking_store_registry, build_tracking)
    if unreachable is not None:
        _register(run, _get_store_registry(), lambda _: unreachable)


def answer_calls(
    kind: type,
    answers: Mapping[str, Callable[..., Any]],
    is_ours: Callable[[tuple[Any, ...], dict[str, Any]], bool],
) -> None:
    """Makes methods of a class answer the calls that are about what is the training's.

    Args:
        kind: The class.
        answers: By name of a method, what to call in its place, with the same arguments.
        is_ours: Whether a call with these arguments is about what is the training's.
    """

    def replace(original: Callable[..., Any], answer: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **options: Any) -> Any:
            if is_ours(args, options):
                return answer(*args, **options)
            return original(self, *args, **options)

        return method

    for name, answer in answers.items():
        if hasattr(kind, name):  # Not each version of MLflow has all of them.
            setattr(kind, name, replace(getattr(kind, name), answer))


def _register(run: RankRun, registry: Any, build_own: Callable[[Callable[[], Any]], Any]) -> None:
    """Registers a builder that makes a store of ours for the training's URI alone."""
    from mlflow.utils.uri import get_uri_scheme

    build = registry.get_store_builder(run.tracking_uri)

    @functools.wraps(build)  # MLflow looks at a builder's parameters.
    def build_store(store_uri: str, **options: Any) -> Any:
        build_theirs = functools.partial(build, store_uri=store_uri, **options)
        if not is_training_store(run, store_uri):
            return build_theirs()
        with without_collecting():  # The first time, it imports a database's library.
            return build_own(build_theirs)

    is_name = run.tracking_uri == "databricks"
    registry.register("databricks" if is_name else get_uri_scheme(run.tracking_uri), build_store)


def _place(uri: str) -> tuple[str, str, str]:
    """The parts of a URI that identify a store: not its user, nor a last slash."""
    parts = urlsplit(uri)
    return parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/")


def _unreachable(run: RankRun) -> Any:
    """In place of a store that is a file on another host: refuses all but what the driver tells."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.model_registry.abstract_store import AbstractStore as AbstractModels
    from mlflow.store.tracking.abstract_store import AbstractStore

    def refuse(*_: Any, **__: Any) -> Any:
        raise MlflowException(
            f"Rank {run.rank} runs on host {run.host}, and MLflow's store is a file on the "
            "driver's. Rank 0's metrics, parameters and tags reach it by way of the driver; for "
            "all else, set a tracking server (MLFLOW_TRACKING_URI=http://…)."
        )

    names = {*dir(AbstractStore), *dir(AbstractModels)}
    methods: dict[str, Any] = {name: refuse for name in names if not name.startswith("_")}
    for name in ("shut_down_async_logging", "flush_async_logging", "end_async_logging"):
        methods[name] = lambda *_: None  # There is nothing that runs beside.
    return type("UnreachableStore", (), methods)()
