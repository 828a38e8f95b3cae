"""What logging a model needs at the end of a training, tried before its first step."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.tracking.models.columns import Columns, names_of
from sparkdl_runner.tracking.models.example import Example
from sparkdl_runner.tracking.models.network_flavor import NetworkFlavor

if TYPE_CHECKING:
    from torch import nn


def check_can_log(size_bytes: int) -> None:
    """Asks a store that is a file for the run, and looks at the folders that a model goes to.

    A training without a run needs nothing. A server is not asked, since the training would wait for
    one that is down; nor is a remote storage of artifacts.

    Args:
        size_bytes: Of the model's weights.

    Raises:
        RunnerError: The model could not be logged after the training.
    """
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if not run_id:
        return
    import mlflow

    artifacts = None
    try:
        if _local_path(mlflow.get_tracking_uri()) is not None:
            artifacts = _local_path(mlflow.get_run(run_id).info.artifact_uri)
    except mlflow.MlflowException as error:
        raise RunnerError(
            "The training was not begun, since its model could not be logged at the end: "
            f"{first_line(error)}"
        ) from error
    # A model is written to the temporary folder first.
    for folder, setting in (
        (Path(tempfile.gettempdir()), "TMPDIR"),
        (artifacts, "the experiment's artifact location"),
    ):
        if folder is not None:
            _check_folder(folder, setting, size_bytes)


def check_signature(network: nn.Module, input_example: Any, columns: Columns) -> None:
    """Makes the signature that ``log_model`` would make of a copy of the network.

    Args:
        network: What ``log_model`` would get as its model.
        input_example: See ``log_model``.
        columns: See ``log_model``.

    Raises:
        ValueError: The columns do not fit the example.
        TypeError: The network does not return tensors, or MLflow does not know their type.
    """
    network = copy.deepcopy(network).to("cpu").eval()
    example = Example.of(input_example, network)
    NetworkFlavor(
        data=Path(),
        is_graph=True,
        columns=names_of(columns, example),
        shapes={name: tuple(rows.shape) for name, rows in example.tensors.items()},
        example=example,
        fresh=example,
        expected=example.answer(network),
    ).signature()


def _local_path(uri: str) -> Path | None:
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file", "sqlite") else None


def _check_folder(folder: Path, setting: str, size_bytes: int) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    message = "The training was not begun, since its model could not be saved at the end: "
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunnerError(
            f"{message}this user may not write to {there}. Give it the right, or set {setting} to "
            "another folder."
        )
    free = shutil.disk_usage(there).free
    if free < size_bytes:
        raise RunnerError(
            f"{message}it takes at least {size_bytes:,} bytes, and {there} has {free:,} free. Make "
            f"room, or set {setting} to another folder."
        )
