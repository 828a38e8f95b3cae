"""``log_model``: a trained network as an MLflow model that can be loaded safely and scored."""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.base.unwrapping import is_sharded, unwrapped
from sparkdl_runner.rank import rank_facts, world
from sparkdl_runner.tensors.torch_export import NotExportableError
from sparkdl_runner.tracking.models import exported_graph
from sparkdl_runner.tracking.models.columns import Columns, names_of
from sparkdl_runner.tracking.models.example import Example, Place
from sparkdl_runner.tracking.models.exported_graph import Shapes
from sparkdl_runner.tracking.models.flavor_arguments import keeps_graphs, taken_by, version_of
from sparkdl_runner.tracking.models.network_flavor import GRAPH_FILE, NetworkFlavor
from sparkdl_runner.tracking.models.requirements import (
    own_modules,
    requirements,
    without_package_lists,
)
from sparkdl_runner.tracking.rank import metrics

if TYPE_CHECKING:
    import torch


class SavedModel(Protocol):
    """The parts of a ``Checkpoint`` that are needed here."""

    @property
    def model(self) -> dict[str, Any] | None:
        """The network's state."""

    @property
    def step(self) -> int:
        """Steps that were done."""

    @property
    def path(self) -> str:
        """The checkpoint's place."""


def log_model(
    model: Any,
    *,
    input_example: Any,
    columns: Columns = None,
    dynamic_shapes: Mapping[Any, Any] | None = None,
    name: str = "model",
    signature: Any = None,
    step: int | None = None,
    checkpoint: SavedModel | str | None = None,
    registered_model_name: str | None = None,
    alias: str | None = None,
    tags: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Logs a network to the run of the training, from rank 0; on other ranks it does nothing.

    If the network can be exported, it is saved as a graph (``pt2``), which needs no source; else
    MLflow pickles it, and a message says so. Either is code: load only what you would run. The
    model loads by
    ``mlflow.pyfunc.load_model`` and scores a DataFrame by ``mlflow.pyfunc.spark_udf``. Before it is
    logged it is loaded once, and tried with rows that it was not exported with.

    Args:
        model: A ``torch.nn.Module`` that takes tensors and returns a tensor, or a tuple or dict of
            tensors; also one that is compiled or that DistributedDataParallel wraps. It stays as it
            is: a copy is put on the CPU and into evaluation mode.
        input_example: Rows that the network takes: a tensor or array ``[rows, …]``; of several
            arguments a tuple of these, or a mapping by the argument's name. The model takes any
            number of rows, and other sizes too where the network does.
        columns: Which columns of a Spark DataFrame a row is made of: the name of one of arrays,
            flat or of the shape of a row; or a name for each number of a row. Of several arguments,
            such a choice for each, by the argument's name. The model then takes DataFrames with
            these columns, of any type of numbers, and several outputs are a column each. By default
            it takes a tensor without a name, or several by the arguments' names, of the example's
            types.
        dynamic_shapes: Which sizes may vary, where finding that out fails: by dimension, as
            ``torch.export.export`` takes it; of several arguments by argument and dimension.
        name: What the model is called in the run.
        signature: Its inputs and outputs; by default they follow from the example.
        step: The step that it was trained to; by default the last one of a metric.
        checkpoint: A ``Checkpoint`` whose weights to log, in place of the network's own:
            ``Checkpoint.load(url, which="best")``. Or where the checkpoint is that the network is
            equal to; by default the newest one that a ``CheckpointManager`` of this process has
            committed.
        registered_model_name: Also registers it under this name.
        alias: Also gives this alias to what was registered.
        tags: Set on the model.
        **options: Further arguments of ``mlflow.pyfunc.log_model``.

    Returns:
        MLflow's ``ModelInfo``, on rank 0; None on other ranks, and where the training has no run,
        which is said.

    Raises:
        ValueError: There is an alias and no name to register under, the example has no rows, the
            columns are not as many as its numbers, or the checkpoint is of another network.
        TypeError: The network is sharded, or returns something else than tensors.
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
        tell(f"the model {name!r} was not logged: this training has no MLflow run.", sys.stdout)
        return None
    from mlflow.models import Model

    network = copy.deepcopy(network).to("cpu").eval()
    if not (checkpoint is None or isinstance(checkpoint, str)):
        _load(network, checkpoint)
        step = checkpoint.step if step is None else step
        checkpoint = checkpoint.path
    if step is None:
        # MLflow shows with the model the run's metrics of its step.
        step = metrics.newest_step() or None
    example = Example.of(input_example, network)
    names = names_of(columns, example)
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl_runner-model-") as folder,
        without_package_lists(),
    ):
        flavor = _write(network, example, names, dynamic_shapes, Path(folder) / "model", name)
        if not {"pip_requirements", "conda_env"} & options.keys():
            options["pip_requirements"] = requirements(None if flavor.is_graph else network)
        if not flavor.is_graph and "code_paths" not in options and (own := own_modules(network)):
            tell(
                f"the model {name!r} needs {', '.join(own)}, which belong to no "
                "installed package: give log_model code_paths=[…] with their files.",
                sys.stdout,
            )
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
    known = rank_facts.current()
    all_tags = {
        "sparkdl_runner.serialization": "pt2" if flavor.is_graph else "pickle",
        "sparkdl_runner.step": "" if step is None else str(step),
        "sparkdl_runner.checkpoint": (
            str(known.get("checkpoint", "")) if checkpoint is None else checkpoint
        ),
        **(tags or {}),
    }
    client = mlflow.MlflowClient()
    if hasattr(client, "set_logged_model_tags"):  # Before MLflow 3, a model has none.
        filled_tags = {key: text for key, text in all_tags.items() if text}
        client.set_logged_model_tags(info.model_id, filled_tags)
    if alias is not None:
        version = version_of(info, registered_model_name)
        client.set_registered_model_alias(registered_model_name, alias, version)
    return info


def _load(network: torch.nn.Module, checkpoint: SavedModel) -> None:
    """Gives a network the weights of a checkpoint.

    Raises:
        ValueError: They are another network's, or there are none.
    """
    if checkpoint.model is None:
        raise ValueError(
            f"log_model: the checkpoint {checkpoint.path} holds no model: give one that was saved "
            "with its model, by save(step, model)."
        )
    try:
        network.load_state_dict(checkpoint.model)
    except RuntimeError as error:
        problem = " ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise ValueError(
            f"log_model: the checkpoint {checkpoint.path} is of another network than "
            f"{type(network).__name__}: {problem}"
        ) from None


def _write(
    network: torch.nn.Module,
    example: Example,
    columns: dict[str, list[str]] | None,
    dynamic_shapes: Mapping[Any, Any] | None,
    data: Path,
    name: str,
) -> NetworkFlavor:
    """Writes the network into a folder, as a graph or else by pickle."""
    from mlflow import pytorch
    from mlflow.version import VERSION

    data.mkdir()
    expected = example.answer(network)
    others = exported_graph.other_sizes(network, example)
    is_graph = keeps_graphs(pytorch.log_model)
    try:
        if not is_graph:
            raise NotExportableError(f"MLflow {VERSION} keeps no graphs")
        path = data / GRAPH_FILE
        shapes = exported_graph.export(network, example, others, dynamic_shapes, path)
        _tell_of_fixed_sizes(name, shapes, {} if dynamic_shapes else others)
    except NotExportableError as reason:
        tell(
            f"the model {name!r} cannot be exported ({reason}) and was saved by "
            "pickle: load it only where you trust its origin.",
            sys.stdout,
        )
        whole = data.with_name("pickled")
        arguments = {"serialization_format": "pickle", "pip_requirements": requirements()}
        pytorch.save_model(network, str(whole), **taken_by(pytorch.save_model, arguments))
        is_graph, data = False, whole / "data"
        varies = {place for places in others for place in places}
        # MLflow's models take any number of rows, also where the network refuses to.
        shapes = {
            argument: tuple(
                -1 if place == 0 or (argument, place) in varies else size
                for place, size in enumerate(rows.shape)
            )
            for argument, rows in example.tensors.items()
        }
    fresh = example
    if example.rows in others:
        fresh = example.resized(dict.fromkeys(example.rows, others[example.rows]))
        expected = fresh.answer(network)
    return NetworkFlavor(
        data=data,
        is_graph=is_graph,
        columns=columns,
        shapes=shapes,
        example=example,
        fresh=fresh,
        expected=expected,
    )


def _tell_of_fixed_sizes(name: str, shapes: Shapes, others: Iterable[tuple[Place, ...]]) -> None:
    fixed = [place for places in others for place in places if shapes[place[0]][place[1]] != -1]
    if fixed:
        sizes = ", ".join(
            f"{shapes[argument][dimension]} in dimension {dimension}"
            + (f" of {argument}" if argument else "")
            for argument, dimension in fixed
        )
        tell(
            f"the model {name!r} takes the sizes of its example alone "
            f"({sizes}): its network takes others, and torch exports it for these only.",
            sys.stdout,
        )
