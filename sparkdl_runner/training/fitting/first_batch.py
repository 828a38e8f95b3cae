"""Tries one batch with the model on the driver, before slots are taken."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import NotPicklableError
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Task, by_label
from sparkdl_runner.training.description.described import described
from sparkdl_runner.training.description.options import TrainingPlan, columns_of
from sparkdl_runner.training.fitting.checks import check_labels

if TYPE_CHECKING:
    import torch

    from sparkdl_runner.training.fitting.conversions import FitData

_ROWS = 8
"""Rows of the batch, at most: enough to tell rows from another dimension."""

_log = logging.getLogger(__name__)


def network_of(model: Any) -> torch.nn.Module:
    """A network of the fit's own: a copy of a module, or what a factory makes.

    Raises:
        TypeError: The factory makes something else, or cannot be called without arguments.
        ValueError: The model has lazy layers, whose shapes are unknown.
        NotPicklableError: A module cannot be copied, and so not be sent to the ranks.
    """
    import torch

    if isinstance(model, torch.nn.Module):
        try:
            network = copy.deepcopy(model)
        except Exception as error:
            raise NotPicklableError(
                f"model is {described(model)}, which cannot be copied or sent to the ranks "
                f"({type(error).__name__}: {error}). Give a function that makes it, or leave out "
                "of the module what cannot be pickled."
            ) from error
    else:
        try:
            # The driver's own random numbers stay what they are.
            with torch.random.fork_rng(devices=[]):
                network = model()
        except TypeError as error:
            raise TypeError(
                f"model is {described(model)}, which cannot be called without arguments ({error}): "
                f"give functools.partial({described(model)}, …)."
            ) from error
        if not isinstance(network, torch.nn.Module):
            raise TypeError(
                f"model {described(model)} made a {type(network).__name__}; "
                "expected a torch.nn.Module."
            )
    lazy = [name for name, parameter in network.named_parameters() if _is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"The model's parameter {lazy[0]!r} has no shape yet: ranks need one to begin with the "
            "same weights. Give the layer its sizes in place of a lazy one, or call the model once."
        )
    return network


def check_first_batch(
    plan: TrainingPlan, network: torch.nn.Module, data: FitData, tasks: Mapping[str, Task]
) -> dict[str, torch.Tensor]:
    """Calls the network, the loss and the metrics with a few rows. Starts no Spark job.

    Returns:
        The batch.

    Raises:
        ValueError: Something does not fit.
        TypeError: A factory makes something else than it should.
        DatasetError: A column cannot become a tensor.
    """
    import torch

    _check_factories(plan, network)
    batch = _read(plan, data)
    inputs = Inputs.of(plan.feature_cols, network)
    was_training = network.training
    try:
        network.eval()
        with torch.no_grad():
            outputs = _call(network, inputs, batch)
    finally:
        network.train(was_training)
    if outputs is None:
        return batch
    classes = {}
    for name, output in by_label(outputs, plan.label_cols).items():
        if tasks[name] == "multiclass" and output.ndim > 1 and batch[name].ndim < output.ndim:
            classes[name] = (tasks[name], int(output.shape[1]))
        elif tasks[name] == "binary":
            classes[name] = (tasks[name], 2)
    check_labels(data, classes, plan.loss)
    if plan.train_step is None and plan.training_fn is None:
        _check_loss(plan, outputs, batch)
    return batch


def _read(plan: TrainingPlan, data: FitData) -> dict[str, torch.Tensor]:
    reading: dict[str, Any] = {
        "columns": columns_of(plan),
        "transform": plan.transformation_fn,
        **plan.reading,
    }
    with data.train.make_torch_dataloader(
        min(_ROWS, plan.batch_size, len(data.train)),
        num_epochs=1,
        workers_count=1,
        shuffle=False,
        tail="drop",
        cur_shard=0,
        shard_count=1,
        prefetch_batches=1,
        **reading,
    ) as loader:
        batch: dict[str, torch.Tensor] = next(iter(loader))
    missing = [name for name in columns_of(plan) if name not in batch]
    if missing and plan.train_step is None and plan.training_fn is None:
        raise ValueError(
            f"transformation_fn returned a batch without {missing[0]!r} (it has "
            f"{', '.join(batch)}), and the training reads that column."
        )
    return batch


def _call(network: torch.nn.Module, inputs: Inputs, batch: Mapping[str, torch.Tensor]) -> Any:
    """The network's outputs; None if it needs a GPU and the driver has none."""
    import torch

    try:
        positional, named = inputs(batch)
        return network(*positional, **named)
    except Exception as error:
        if not torch.cuda.is_available() and any(
            word in f"{error}" for word in ("CUDA", "NVIDIA", "cuda")
        ):
            _log.info("The model needs a GPU, so its shapes are not checked here: %s", error)
            return None
        raise ValueError(
            f"The model {type(network).__name__} does not take a batch of these columns, seen on "
            f"the driver before ranks were started: {_shapes(batch, inputs.columns)}. It raised "
            f"{_reason(error)}. Bring the columns to the shapes and "
            "types that its forward expects, or change them in the model."
        ) from error


def _check_loss(plan: TrainingPlan, outputs: Any, batch: Mapping[str, torch.Tensor]) -> None:
    import torch

    from sparkdl_runner.training.loop.losses import Losses
    from sparkdl_runner.training.loop.metrics import Metrics
    from sparkdl_runner.training.loop.ranks import Ranks

    losses = Losses(
        loss=plan.loss,
        labels=tuple(plan.label_cols),
        loss_weights=plan.loss_weights,
        class_weights=plan.class_weights,
        sample_weight_col=plan.sample_weight_col,
    )
    by_name = by_label(outputs, plan.label_cols)
    said = ", ".join(f"{list(output.shape)} for {name!r}" for name, output in by_name.items())
    where = f"the model returned {said}, and labels are {_shapes(batch, plan.label_cols)}"
    try:
        with torch.no_grad():
            value = losses(outputs, batch)
    except TypeError:
        raise
    except Exception as error:
        raise ValueError(
            f"The loss {described(plan.loss)} does not fit ({type(error).__name__}: "
            f"{_reason(error)}): {where}."
        ) from error
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise TypeError(
            f"The loss {described(plan.loss)} returned {type(value).__name__}; expected a tensor "
            "of one number, or of one a row."
        )
    try:
        metrics = Metrics(copy.deepcopy(dict(plan.metrics or {})), losses.labels, Ranks())
        metrics.update(losses.probabilities(losses.pairs(outputs, batch)))
    except Exception as error:
        raise ValueError(f"A metric does not fit ({_reason(error)}): {where}.") from error


def _check_factories(plan: TrainingPlan, network: torch.nn.Module) -> None:
    import torch

    trained = copy.deepcopy(network) if any(True for _ in network.parameters()) else network
    made = _made("optimizer", plan.optimizer, trained.parameters())
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer {described(plan.optimizer)} made a {type(made).__name__}; "
            "expected a torch.optim.Optimizer of the parameters that it is called with."
        )
    if plan.lr_scheduler is not None:
        scheduler = _made("lr_scheduler", plan.lr_scheduler, made)
        if not hasattr(scheduler, "step"):
            raise TypeError(
                f"lr_scheduler {described(plan.lr_scheduler)} made a {type(scheduler).__name__}; "
                "expected one of torch.optim.lr_scheduler."
            )


def _made(name: str, factory: Any, argument: Any) -> Any:
    try:
        return factory(argument)
    except Exception as error:
        raise ValueError(
            f"{name} {described(factory)} fails ({_reason(error)}): "
            + (
                "correct the arguments of functools.partial."
                if isinstance(factory, functools.partial)
                else f"give it its other arguments by functools.partial({described(factory)}, …)."
            )
        ) from error


def _shapes(batch: Mapping[str, torch.Tensor], names: Any) -> str:
    return ", ".join(
        f"{name!r} {str(batch[name].dtype).removeprefix('torch.')} {list(batch[name].shape)}"
        for name in names
        if name in batch
    )


def _is_lazy(parameter: Any) -> bool:
    from torch.nn.parameter import is_lazy

    return bool(is_lazy(parameter))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error).rstrip('.')}"
