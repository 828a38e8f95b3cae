"""MLflow for jobs: chooses the store, logs the configuration, registers the model."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sparkdl_runner.base.importing import without_collecting
from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import ConfigError, LaunchError, RunnerError
from sparkdl_runner.tracking.entries import HIDDEN, hidden_tag
from sparkdl_runner.tracking.run.opening.store import check_store, open_store
from sparkdl_runner.tracking.run.server import is_remote
from sparkdl_runner.tracking.run.server_calls import (
    TookTooLongError,
    no_answer,
    problem_within,
    within,
)
from sparkdl_runner.tracking.settings import Tracking

DESCRIBE_SECONDS = 20.0
REGISTERED_TAG = f"{HIDDEN}registered"


def use(tracking: Tracking) -> None:
    """Makes its store the one of this process, after a check that the store answers.

    On a server, the experiment is looked up as well, and made if it is not there: a wrong token or
    experiment is to be told before data are converted.

    Raises:
        ConfigError: MLflow is missing or old, or the store is not there, or refuses.
    """
    try:
        uri = check_store(tracking)
        if is_remote(uri) and tracking.run_id is None:
            open_store(tracking)
    except LaunchError as error:
        raise ConfigError(str(error)) from None
    import mlflow

    if tracking.tracking_uri is not None:
        mlflow.set_tracking_uri(uri)
    if uri.startswith("sqlite:///"):
        # The run's opening needs it. It is only imported: a job that is refused makes no database.
        with suppress(ImportError), without_collecting():
            importlib.import_module("mlflow.store.tracking.sqlalchemy_store")


def tag(run_id: str, name: str, timeout_seconds: float) -> str | None:
    """The value of a tag of a run; None if it has none.

    Raises:
        ConfigError: There is no such run, or MLflow hangs for so long.
    """
    import mlflow

    try:
        client = mlflow.MlflowClient()
        tags = within(lambda: client.get_run(run_id), timeout_seconds).data.tags
    except TookTooLongError:
        message = no_answer(mlflow.get_tracking_uri(), f"resume run {run_id}", timeout_seconds)
        raise ConfigError(message) from None
    except Exception as error:
        raise ConfigError(f"cannot resume the MLflow run {run_id}: {_reason(error)}.") from None
    value = tags.get(name)
    return None if value is None else str(value)


def describe(
    run_id: str,
    hyperparameters: Mapping[str, Any],
    written: Mapping[str, Any],
    secrets: Sequence[str] = (),
) -> None:
    """Adds the hyperparameters that the training has not logged itself, and the configuration.

    That takes some seconds at most, and fails quietly: it must not hide how the training ended.
    Neither shows ``secrets``, nor those of this process's environment.
    """
    import mlflow

    client = mlflow.MlflowClient()
    redact = Redactor([*secrets_of(), *secrets])

    def log() -> None:
        known = client.get_run(run_id).data.params
        for name, value in redact.value(hyperparameters).items():
            if name not in known:
                with suppress(mlflow.MlflowException):  # longer than the store takes, say
                    client.log_param(run_id, name, value)
        client.log_dict(run_id, redact.value(written), "config.yaml")

    problem = problem_within(log, DESCRIBE_SECONDS)
    if problem is not None:
        print(f"The run's configuration was not logged: {redact(problem)}.", file=sys.stderr)


def register(run_id: str, name: str, alias: str | None) -> None:
    """Registers the model that the run has logged last, unless that has been done.

    A job that died meanwhile is called again: what it has registered gets no second version, and an
    alias that has been given since to another version stays there.

    Raises:
        RunnerError: It has logged none, or the registry refuses.
    """
    import mlflow

    client = mlflow.MlflowClient()
    try:
        run = client.get_run(run_id)
        uri = _newest_model(client, run)
        if uri is None:
            raise RunnerError(
                f"The training has logged no model that could be registered as {name}: call "
                "sparkdl_runner.tracking.log_model in the function."
            )
        done = json.dumps({"model": uri, "name": name, "alias": alias})
        if hidden_tag(run.data.tags, REGISTERED_TAG) == done:
            print(f"The model of run {run_id} was registered as {name} before.")
            return
        version = _version_of(client, run_id, uri, name) or mlflow.register_model(uri, name).version
        if alias is not None:
            client.set_registered_model_alias(name, alias, str(version))
        client.set_tag(run_id, REGISTERED_TAG, done)
    except RunnerError:
        raise
    except Exception as error:
        raise RunnerError(f"The model cannot be registered as {name}: {_reason(error)}.") from None
    print(f"registered as models:/{name}/{version}" + (f", {name}@{alias}" if alias else ""))


def show_page(run_id: str) -> str:
    """Prints how to open the run in a browser, and returns its store's URI without secrets."""
    import mlflow

    uri = Redactor()(str(mlflow.get_tracking_uri()))
    if not uri.startswith(("http://", "https://", "databricks")):
        command = shlex.join([sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri])
        print(f"Open the MLflow UI with\n  {command}\nand this run at")
        print(f"  http://127.0.0.1:5000/#/runs/{run_id}")
        print("MLflow's list of runs is behind 'Model training', where it opens with 'GenAI'.\n")
    return uri


def _newest_model(client: Any, run: Any) -> str | None:
    """The URI of the model that a run has logged last; None if it has logged none."""
    if not hasattr(client, "get_logged_model"):  # Before MLflow 3, a tag lists them.
        history = json.loads(run.data.tags.get("mlflow.log-model.history", "[]"))
        return f"runs:/{run.info.run_id}/{history[-1]['artifact_path']}" if history else None
    from mlflow.entities import LoggedModelStatus

    named = run.outputs.model_outputs if run.outputs is not None else []
    # A model whose rank was killed meanwhile has no files, and an attempt may log a step again.
    logged = [(output.step or 0, client.get_logged_model(output.model_id)) for output in named]
    ready = [pair for pair in logged if pair[1].status == LoggedModelStatus.READY]
    if not ready:
        return None
    return str(max(ready, key=lambda pair: (pair[0], pair[1].creation_timestamp))[1].model_uri)


def _version_of(client: Any, run_id: str, uri: str, name: str) -> str | None:
    """The version as which a model of a run was registered; None if it was not."""
    # Before MLflow 3, the source is where the run keeps the model's files.
    place = uri.partition(run_id)[2] if uri.startswith("runs:/") else uri
    quotation = '"' if "'" in name else "'"
    for version in client.search_model_versions(f"name = {quotation}{name}{quotation}"):
        is_it = version.run_id == run_id and str(version.source).endswith(place)
        if is_it and version.status == "READY":
            return str(version.version)
    return None


def _reason(error: Exception) -> str:
    return Redactor(secrets_of())(first_line(error)).rstrip(".")[:400]
