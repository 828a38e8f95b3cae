"""``log_model``: a trained network as an MLflow model that can be loaded safely and scored."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any

from sparkdl_runner import facts, world
from sparkdl_runner.unwrapping import unwrapped

MIN_EXAMPLE_ROWS = 2


def log_model(
    model: Any,
    *,
    input_example: Any,
    name: str = "model",
    signature: Any = None,
    step: int | None = None,
    checkpoint: str | None = None,
    registered_model_name: str | None = None,
    alias: str | None = None,
    tags: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Logs a network to the run of the training, from rank 0; on other ranks it does nothing.

    It is saved as an exported graph (``pt2``), which loads without its source and runs nobody's
    pickle, where the network can be exported; else as MLflow pickles it, and that is said. It loads
    by ``mlflow.pyfunc.load_model`` and scores a DataFrame by ``mlflow.pyfunc.spark_udf``.

    Args:
        model: A ``torch.nn.Module``, also one that DistributedDataParallel wraps. It stays as it
            is: a copy is put on the CPU and into evaluation mode.
        input_example: Rows that the network takes, a tensor or array ``[rows, …]``.
        name: What the model is called in the run.
        signature: Its inputs and outputs; by default inferred from the example.
        step: The step that it was trained to.
        checkpoint: Where the checkpoint is that it is equal to; by default the newest one that a
            ``CheckpointManager`` of this process has committed.
        registered_model_name: Also registers it under this name.
        alias: Also gives this alias to what was registered.
        tags: Set on the model.
        **options: Further arguments of ``mlflow.pytorch.log_model``.

    Returns:
        What ``mlflow.pytorch.log_model`` returns, on rank 0; None on other ranks, and where the
        training has no run, which is said.

    Raises:
        ValueError: There is an alias and no name to register under, or the example has no rows.
    """
    if alias is not None and registered_model_name is None:
        raise ValueError(
            f"log_model: alias is {alias!r}, and there is no registered_model_name for it. Give "
            "both, or neither."
        )
    if world.in_worker() and world.current_world().rank != 0:
        return None
    import mlflow

    if world.in_worker() and mlflow.active_run() is None:
        print(
            f"sparkdl_runner: the model {name!r} was not logged: this training has no MLflow run.",
            flush=True,
        )
        return None
    import mlflow.pytorch
    import torch
    from mlflow.models import infer_signature

    network = copy.deepcopy(unwrapped(model)).to("cpu").eval()
    rows = torch.as_tensor(input_example).detach().cpu()
    if rows.ndim == 0 or len(rows) == 0:
        raise ValueError("log_model: input_example has no rows; give some that the network takes.")
    # An exported graph takes any number of rows only if its example had several.
    rows = rows if len(rows) >= MIN_EXAMPLE_ROWS else rows.repeat(2, *[1] * (rows.ndim - 1))
    example = rows.numpy()
    if signature is None:
        with torch.no_grad():
            signature = infer_signature(example, network(rows).numpy())
    are_ours = "pip_requirements" not in options
    torch_version = torch.__version__.partition("+")[0]
    options.setdefault("pip_requirements", [f"torch=={torch_version}"])

    def log(**more: Any) -> Any:
        with _no_list_of_packages() if are_ours else nullcontext():
            return mlflow.pytorch.log_model(
                network,
                name=name,
                signature=signature,
                input_example=example,
                step=step or 0,
                registered_model_name=registered_model_name,
                **{**options, **more},
            )

    reason = _why_not_exportable(network, rows)
    if reason is None:
        info = log(serialization_format="pt2")
    else:
        print(
            f"sparkdl_runner: the model {name!r} cannot be exported ({reason}) and was saved by "
            "pickle: load it only where you trust its origin.",
            flush=True,
        )
        info = log(serialization_format="pickle")
    known = facts.current()
    linked = {
        "sparkdl_runner.serialization": "pt2" if reason is None else "pickle",
        "sparkdl_runner.step": "" if step is None else str(step),
        "sparkdl_runner.checkpoint": checkpoint or str(known.get("checkpoint", "")),
        **(tags or {}),
    }
    client = mlflow.MlflowClient()
    client.set_logged_model_tags(info.model_id, {key: text for key, text in linked.items() if text})
    if alias is not None:
        client.set_registered_model_alias(
            registered_model_name, alias, str(info.registered_model_version)
        )
    return info


def _why_not_exportable(network: Any, rows: Any) -> str | None:
    """Tries to export the network; returns why that fails, in one line."""
    import torch

    dynamic = ({0: torch.export.Dim.AUTO},)
    try:
        # It shows the graph that it could not finish.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), _no_warnings():
            torch.export.export(network, (rows,), dynamic_shapes=dynamic)
    except Exception as error:  # Tracing runs the network's own code.
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return None


@contextmanager
def _no_list_of_packages() -> Iterator[None]:
    """Keeps MLflow from reading the file lists of all installed packages.

    That takes half of the time of logging a model, and serves requirements that are installed under
    another name than they are imported by; torch and mlflow are not.
    """
    from mlflow.utils import requirements_utils as known

    if getattr(known, "_MODULES_TO_PACKAGES", {}) is not None:
        yield
        return
    known._MODULES_TO_PACKAGES = {}
    try:
        yield
    finally:
        known._MODULES_TO_PACKAGES = None


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Logging goes to the stream that was there when it began, past any redirection."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
