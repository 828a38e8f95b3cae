"""``log_model``: a trained network as an MLflow model that can be loaded safely and scored."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_runner import world
from sparkdl_runner.hooks import facts
from sparkdl_runner.network.torch_export import NotExportableError
from sparkdl_runner.tracking.models import exported_graph
from sparkdl_runner.tracking.models.exported_graph import MIN_EXAMPLE_ROWS
from sparkdl_runner.tracking.models.flavor_arguments import keeps_graphs, taken_by, version_of
from sparkdl_runner.tracking.models.network_flavor import GRAPH_FILE, NetworkFlavor
from sparkdl_runner.tracking.rank import metrics
from sparkdl_runner.unwrapping import is_sharded, unwrapped

if TYPE_CHECKING:
    import torch


def log_model(
    model: Any,
    *,
    input_example: Any,
    columns: str | Sequence[str] | None = None,
    dynamic_shapes: Mapping[int, Any] | None = None,
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
    by ``mlflow.pyfunc.load_model`` and scores a DataFrame by ``mlflow.pyfunc.spark_udf``. Before it
    is logged it is loaded once, and asked about rows that it was not exported with.

    Args:
        model: A ``torch.nn.Module`` that takes one tensor and returns one, also one that is
            compiled or that DistributedDataParallel wraps. It stays as it is: a copy is put on the
            CPU and into evaluation mode.
        input_example: Rows that the network takes, a tensor or array ``[rows, …]``. The model takes
            any number of rows, and other sizes too where the network does.
        columns: Which columns of a Spark DataFrame a row is made of: the name of one of arrays,
            flat or of the shape of a row; or a name for each number of a row. The model then takes
            DataFrames with these columns, of any type of numbers. By default it takes one tensor
            without a name, of the example's type.
        dynamic_shapes: Which sizes may vary, where finding that out fails: by dimension, as
            ``torch.export.export`` takes it.
        name: What the model is called in the run.
        signature: Its inputs and outputs; by default they follow from the example.
        step: The step that it was trained to; by default the last one of a metric.
        checkpoint: Where the checkpoint is that it is equal to; by default the newest one that a
            ``CheckpointManager`` of this process has committed.
        registered_model_name: Also registers it under this name.
        alias: Also gives this alias to what was registered.
        tags: Set on the model.
        **options: Further arguments of ``mlflow.pyfunc.log_model``.

    Returns:
        MLflow's ``ModelInfo``, on rank 0; None on other ranks, and where the training has no run,
        which is said.

    Raises:
        ValueError: There is an alias and no name to register under, the example has no rows, or
            the columns are not as many as its numbers.
        TypeError: The network is sharded, or does not return one tensor.
        RuntimeError: The model does not answer as the network, once it is loaded again.
    """
    if alias is not None and registered_model_name is None:
        raise ValueError(
            f"log_model: alias is {alias!r}, and there is no registered_model_name for it. Give "
            "both, or neither."
        )
    network = unwrapped(model)
    if is_sharded(network):
        raise TypeError(
            "log_model: the model is sharded, and no rank has all of it. Build it once more, load "
            "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, options="
            "StateDictOptions(full_state_dict=True, cpu_offload=True)) into that, and log it."
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
    from mlflow.models import Model

    if step is None:
        # MLflow shows with the model the run's metrics of its step.
        step = metrics.newest_step() or None
    network = copy.deepcopy(network).to("cpu").eval()
    rows = _rows_of(input_example)
    names = _names_of(columns, rows)
    if not {"pip_requirements", "conda_env"} & options.keys():
        options["pip_requirements"] = _requirements()
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl_runner-model-") as folder,
        _without_package_lists(),
    ):
        flavor = _write(network, rows, names, dynamic_shapes, Path(folder) / "model", name)
        arguments = {
            "artifact_path": None,
            "flavor": flavor,
            "name": name,
            "signature": signature,
            "step": step or 0,
            "registered_model_name": registered_model_name,
            # The flavor checks the model's answers; MLflow would load it again, and only warn.
            "validate_serving_input": False,
            **options,
        }
        info = Model.log(**taken_by(Model.log, arguments))
    known = facts.current()
    all_tags = {
        "sparkdl_runner.serialization": "pt2" if flavor.is_graph else "pickle",
        "sparkdl_runner.step": "" if step is None else str(step),
        "sparkdl_runner.checkpoint": checkpoint or str(known.get("checkpoint", "")),
        **(tags or {}),
    }
    client = mlflow.MlflowClient()
    if hasattr(client, "set_logged_model_tags"):  # Before MLflow 3, a model has none.
        told = {key: text for key, text in all_tags.items() if text}
        client.set_logged_model_tags(info.model_id, told)
    if alias is not None:
        version = version_of(info, registered_model_name)
        client.set_registered_model_alias(registered_model_name, alias, version)
    return info


def _rows_of(input_example: Any) -> torch.Tensor:
    """The example as rows of their own: a part of another tensor would be exported as such."""
    import torch

    rows = torch.as_tensor(input_example).detach().cpu().contiguous()
    if rows.ndim == 0 or len(rows) == 0:
        raise ValueError("log_model: input_example has no rows; give some that the network takes.")
    if len(rows) >= MIN_EXAMPLE_ROWS:
        return rows
    return rows.repeat(MIN_EXAMPLE_ROWS, *[1] * (rows.ndim - 1))


def _names_of(columns: str | Sequence[str] | None, rows: torch.Tensor) -> list[str] | None:
    if columns is None:
        return None
    names = [columns] if isinstance(columns, str) else list(columns)
    numbers = rows[0].numel()
    if not names or (len(names) > 1 and (rows.ndim != 2 or numbers != len(names))):
        raise ValueError(
            f"log_model: columns has {len(names)} names, and a row of input_example has "
            f"{numbers} numbers in the shape {list(rows.shape[1:])}. Name one column of arrays, or "
            "one column for each number of a flat row."
        )
    return names


def _write(
    network: torch.nn.Module,
    rows: torch.Tensor,
    columns: list[str] | None,
    dynamic_shapes: Mapping[int, Any] | None,
    data: Path,
    name: str,
) -> NetworkFlavor:
    """Writes the network into a folder, as a graph or else by pickle."""
    from mlflow import pytorch
    from mlflow.version import VERSION

    data.mkdir()
    others = exported_graph.other_sizes(network, rows)
    is_graph = keeps_graphs(pytorch.log_model)
    try:
        if not is_graph:
            raise NotExportableError(f"MLflow {VERSION} keeps no graphs")
        shape = exported_graph.export(network, rows, others, dynamic_shapes, data / GRAPH_FILE)
        _tell_of_fixed_sizes(name, shape, [] if dynamic_shapes else others)
    except NotExportableError as reason:
        print(
            f"sparkdl_runner: the model {name!r} cannot be exported ({reason}) and was saved by "
            "pickle: load it only where you trust its origin.",
            flush=True,
        )
        whole = data.with_name("pickled")
        arguments = {"serialization_format": "pickle", "pip_requirements": _requirements()}
        pytorch.save_model(network, str(whole), **taken_by(pytorch.save_model, arguments))
        is_graph, data = False, whole / "data"
        # MLflow's models take any number of rows, also where the network refuses to.
        sizes = [-1 if place in others else size for place, size in enumerate(rows.shape)]
        shape = (-1, *sizes[1:])
    fresh = exported_graph.resized(rows, {0: others[0]}) if 0 in others else rows
    return NetworkFlavor(
        data=data,
        is_graph=is_graph,
        columns=columns,
        shape=shape,
        example=rows,
        fresh=fresh,
        expected=exported_graph.answer(network, fresh),
    )


def _tell_of_fixed_sizes(name: str, shape: Sequence[int], others: Iterable[int]) -> None:
    fixed = [dimension for dimension in others if shape[dimension] != -1]
    if fixed:
        sizes = ", ".join(f"{shape[dimension]} in dimension {dimension}" for dimension in fixed)
        print(
            f"sparkdl_runner: the model {name!r} takes the sizes of its example alone "
            f"({sizes}): its network takes others, and torch exports it for these only.",
            flush=True,
        )


def _requirements() -> list[str]:
    import torch

    return [f"torch=={torch.__version__.partition('+')[0]}"]


@contextmanager
def _without_package_lists() -> Iterator[None]:
    """Keeps MLflow from reading the file lists of all installed packages.

    That takes as long as all the rest, and serves requirements that have no metadata.
    """
    from mlflow.utils import requirements_utils

    known = getattr(requirements_utils, "_MODULES_TO_PACKAGES", {})
    if known is None:
        requirements_utils._MODULES_TO_PACKAGES = {}
    try:
        yield
    finally:
        if known is None:
            requirements_utils._MODULES_TO_PACKAGES = None
