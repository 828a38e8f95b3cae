"""``Trainer``: trains a network on all ranks, evaluates it, and goes on after a failure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.checkpoint.stopping import Stop, should_stop
from sparkdl_runner.tensors.inputs import FeatureCols, Inputs
from sparkdl_runner.tracking import log_metrics
from sparkdl_runner.training.description.options import checked, documented
from sparkdl_runner.training.loop import batches
from sparkdl_runner.training.loop.batches import Batch, on_device, rows_of
from sparkdl_runner.training.loop.early_stopping import EarlyStopping
from sparkdl_runner.training.loop.finite import LossValue, require_finite
from sparkdl_runner.training.loop.learning_rate import LearningRate
from sparkdl_runner.training.loop.losses import ClassWeights, Loss, Losses, Pairs
from sparkdl_runner.training.loop.metrics import Metrics
from sparkdl_runner.training.loop.module import made
from sparkdl_runner.training.loop.ranks import MakeOptimizer, Strategy, connect
from sparkdl_runner.training.replicas import ReplicaCheck

Hook = Callable[["Trainer"], None]
History = list[dict[str, float]]


@documented
class Trainer:
    """The loop over epochs, batches and ranks. Override ``train_step`` for a loss of your own.

    All ranks make one and call the same methods; outside of a run it trains alone. Ranks begin with
    rank 0's weights. One rank takes the very steps of a plain loop with the same seed.

    Which columns are which arguments of the model says ``Inputs``, and what the mean of a loss over
    rows is, ``Losses``.

    Args:
        checkpoints: Where the training goes on from, and is saved to when it is due and at its end.
        verify_replicas_every_steps: How often the driver compares all ranks' parameters, and says
            which rank differs; None is never. ``verify_replicas(trainer.network)`` can do more.
        on_step: Called after each step, on every rank.
        on_epoch: Called after each epoch, on every rank. Where a hook sets ``should_stop``, on any
            rank, the training of all ends after this epoch.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: An argument is out of range, or names what is not there.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        optimizer: MakeOptimizer,
        loss: Loss | Mapping[str, Loss],
        *,
        feature_cols: FeatureCols = ("features",),
        label_cols: Sequence[str] = ("label",),
        loss_weights: Mapping[str, float] | None = None,
        class_weights: ClassWeights | None = None,
        sample_weight_col: str | None = None,
        metrics: Mapping[str, Any] | None = None,
        lr_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        warmup_epochs: float = 0,
        gradient_accumulation_steps: int = 1,
        gradient_clip_norm: float | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        strategy: Strategy = "ddp",
        early_stopping: EarlyStopping | None = None,
        checkpoints: CheckpointManager | None = None,
        verify_replicas_every_steps: int | None = 200,
        seed: int = 0,
        on_step: Hook | None = None,
        on_epoch: Hook | None = None,
    ) -> None:
        plan = checked(vars())
        self.ranks = connect(plan.strategy)
        torch.manual_seed(plan.seed)
        self.model = made(plan.model).to(self.ranks.device)
        self.inputs = Inputs.of(plan.feature_cols, self.model)
        if self.ranks.rank:
            torch.manual_seed(plan.seed + self.ranks.rank)  # Each rank drops out units of its own.
        self.network, self.optimizer = self.ranks.prepare(
            self.model, plan.optimizer, plan.gradient_accumulation_steps
        )
        self.losses = Losses(
            plan.loss,
            plan.label_cols,
            loss_weights=plan.loss_weights,
            class_weights=plan.class_weights,
            sample_weight_col=plan.sample_weight_col,
        )
        self._replicas = ReplicaCheck(self.model, None, verify_replicas_every_steps, ends_run=False)
        self.metrics = Metrics(plan.metrics or {}, plan.label_cols, self.ranks)
        self.learning_rate = LearningRate(
            self.optimizer,
            plan.lr_scheduler,
            warmup_epochs=plan.warmup_epochs,
            size=self.ranks.size,
        )
        self.gradient_accumulation_steps = plan.gradient_accumulation_steps
        self.gradient_clip_norm = plan.gradient_clip_norm
        self.autocast: Callable[[], Any] = nullcontext
        if plan.precision == "bf16":
            self.autocast = lambda: torch.autocast(self.ranks.device.type, torch.bfloat16)
        self.early_stopping = plan.early_stopping
        self.checkpoints = checkpoints
        self.on_step, self.on_epoch = on_step, on_epoch
        self.should_stop = False
        self.stop: Stop | None = None
        """Why the training ended before its time, in the middle of an epoch perhaps."""
        self.step = self.epoch = 0
        """Steps that are done, and the epoch that goes on, both counted from 0."""
        self.loss = math.nan
        """This rank's mean loss of the last step."""
        self.history: History = []
        """The losses and metrics of each epoch; those of validation data begin with ``val_``."""
        self._checks_labels = self.ranks.device.type == "cpu"  # A GPU would be waited for.
        self.best_weights: dict[str, Tensor] | None = None
        """The weights of the best epoch so far, with early stopping."""
        self.best_step = 0
        """The steps that were done then."""
        self.loss_and_rows = [0.0, 0.0]
        """The sum of the rows' losses, and the rows, of this rank and epoch."""

    def fit(self, train_data: Any, validation_data: Any = None, *, epochs: int) -> History:
        """Trains until so many epochs are done, of which a checkpoint may hold some.

        Args:
            train_data: A loader of one epoch with ``tail="drop"``: dicts of tensors ``[rows, …]``
                by column. Without checkpoints, any sized iterable of such dicts.
            validation_data: A loader of one epoch, with ``shuffle=False`` and ``tail="pad"``.
            epochs: Passes over ``train_data``, in all.

        Returns:
            The history.

        Raises:
            NonFiniteLossError: The loss is NaN or infinite.
            ValueError: There is not one whole batch, or labels do not fit the model's outputs.
        """
        steps = math.ceil(batches.require_batches(train_data) / self.gradient_accumulation_steps)
        is_read, is_trained = self._restore(train_data), False
        while len(self.history) < epochs and not self.should_stop:
            self.epoch, is_due, is_trained = len(self.history), False, True
            self.network.train()
            rest = iter(()) if is_read else batches.rest_of_epoch(train_data, self.epoch)
            while window := list(islice(rest, self.gradient_accumulation_steps)):
                rows = self._take_step(window, self.step / steps)
                progress: dict[str, Any] = {"epoch": self.epoch + 1, "total_steps": epochs * steps}
                log_metrics(self.step, loss=self.loss, samples=rows, **progress)
                if self.on_step:
                    self.on_step(self)
                if self.checkpoints:
                    is_due = self.checkpoints.due(self.step)
                    # After an epoch's last step its evaluation comes first, but for SIGTERM.
                    if is_due and (self.step % steps or self.checkpoints.preempted):
                        self._save(train_data)
                if stop := should_stop():
                    self.stop = stop
                    break
            if self.stop is not None:
                break
            self._end_epoch(validation_data)
            is_read = self._checks_labels = False
            if is_due and len(self.history) < epochs and not self.should_stop:
                self._save(train_data)
        if is_trained and self.checkpoints:
            self._save(train_data)
        if self.best_weights is not None:
            self.ranks.load_weights(self.model, self.best_weights)
        return self.history

    def train_step(self, batch: Batch) -> Tensor:
        """The mean loss of a batch's rows: a tensor of one number that has a gradient."""
        pairs = self.losses.pairs(self.forward(self.network, batch), batch)
        if self._checks_labels:  # In the first epoch, which has nearly all rows.
            self.losses.check_labels(pairs)
        return self.losses.of_pairs(pairs, batch)

    def eval_step(self, batch: Batch) -> tuple[Tensor, Pairs]:
        """The mean loss of a batch's rows, and what metrics compare: by label, outputs and labels.

        Override it beside ``train_step`` where that has another loss.
        """
        pairs = self.losses.pairs(self.forward(self.model, batch), batch)
        return self.losses.of_pairs(pairs, batch), self.losses.probabilities(pairs)

    def forward(self, network: nn.Module, batch: Batch) -> Any:
        """The outputs of a network for a batch."""
        positional, named = self.inputs(batch)
        try:
            return network(*positional, **named)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            error.add_note(self.inputs.shown(batch))
            raise

    @torch.no_grad()
    def evaluate(self, data: Any) -> dict[str, float]:
        """The loss and the metrics over the rows of all ranks, of which each counts once.

        Args:
            data: A loader of one epoch, with ``shuffle=False`` and ``tail="pad"``. All ranks have
                the same number of batches; rows that ``row_mask`` leaves out do not count.
        """
        self.ranks.broadcast_buffers(self.model)
        was_training = self.network.training
        self.network.eval()
        loss, rows = torch.zeros((), dtype=torch.float64, device=self.ranks.device), 0
        for batch in data:
            count = rows_of(batch, self.losses.labels[0])
            if not count and not self.ranks.forwards_together:
                continue
            with self.autocast():
                mean, pairs = self.eval_step(on_device(batch, self.ranks.device))
            if count:
                loss, rows = loss + mean.double() * count, rows + count
                self.metrics.update(pairs)
        self.network.train(was_training)
        total, all_rows = self.ranks.sum(torch.stack([loss, loss.new_tensor(rows)])).tolist()
        return {"loss": total / all_rows if all_rows else math.nan, **self.metrics.compute()}

    def weights(self) -> dict[str, Tensor]:
        """The model's whole state in host memory; of a sharded model, on rank 0 alone."""
        return self.ranks.weights(self.model)

    def _end_epoch(self, validation_data: Any) -> None:
        loss, rows = self.ranks.sum(torch.tensor(self.loss_and_rows, dtype=torch.float64)).tolist()
        self.loss_and_rows = [0.0, 0.0]
        metrics = {"loss": loss / rows if rows else math.nan}
        if validation_data is not None:
            metrics |= {
                f"val_{name}": value for name, value in self.evaluate(validation_data).items()
            }
        self.history.append(metrics)
        logged = {
            ("epoch_loss" if name == "loss" else name): value for name, value in metrics.items()
        }
        log_metrics(self.step, logged)
        self.learning_rate.end_epoch(metrics)
        if self.early_stopping is not None:
            if self.early_stopping.best_epoch(self.history) == self.epoch:
                self.best_weights, self.best_step = self.weights(), self.step
            self.should_stop |= self.early_stopping.is_over(self.history)
        if self.on_epoch:
            self.on_epoch(self)
        self.should_stop = bool(self.ranks.sum(torch.tensor([float(self.should_stop)])))

    def _take_step(self, window: Sequence[Batch], epochs_done: float) -> int:
        """Takes a step with the mean gradient of some batches.

        Args:
            window: The batches, of which only the last passes average gradients over the ranks.
            epochs_done: With the part of the one that goes on, for the warm-up.

        Returns:
            The rows of all batches.

        Raises:
            NonFiniteLossError: The loss of a batch is NaN or infinite.
            TypeError: ``train_step`` returned no loss.
        """
        ranks, rows = self.ranks, 0
        self.optimizer.zero_grad()
        self.loss = 0.0
        for place, on_host in enumerate(window, 1):
            batch = on_device(on_host, ranks.device)
            alone = place < len(window)
            with ranks.without_allreduce(self.network) if alone else nullcontext():
                with self.autocast():
                    loss = self.train_step(batch)
                _require_loss(loss)
                value = LossValue(loss)
                if not loss.is_cuda:  # On a GPU the number is awaited behind the backward pass.
                    require_finite(float(value), self.step + 1, ranks.rank, batch)
                (loss if len(window) == 1 else loss / len(window)).backward()
            number, count = float(value), rows_of(on_host, self.losses.labels[0])
            require_finite(number, self.step + 1, ranks.rank, batch)
            rows += count
            self.loss += number / len(window)
            self.loss_and_rows[0] += number * count
            self.loss_and_rows[1] += count
        with self.learning_rate.of_step(epochs_done):
            ranks.step(self.optimizer, self.model, self.gradient_clip_norm)
        self.step += 1
        self._replicas.look(self.step)
        return rows

    def _save(self, train_data: Any) -> None:
        """Saves all that a training needs to go on; to be called by all ranks."""
        assert self.checkpoints is not None  # noqa: S101 - the caller has asked
        # From now on ranks have equal buffers, as they would after they are restored.
        self.ranks.broadcast_buffers(self.model)
        totals = self.ranks.gather(torch.tensor([self.loss_and_rows], dtype=torch.float64))
        extra: dict[str, Any] = {
            "history": self.history,
            "loss_and_rows": torch.cat(totals).tolist(),
            "should_stop": self.should_stop,
            "best_weights": self.best_weights,
            "best_step": self.best_step,
            "learning_rate": self.learning_rate.state_dict(),
        }
        is_evaluated = len(self.history) > self.epoch
        extra["is_read"] = train_data.epoch > self.epoch and not is_evaluated
        self.checkpoints.save(
            self.step,
            self.model,
            self.optimizer,
            train_data,
            extra=extra,
            epoch=len(self.history),
            metrics=self.history[-1] if is_evaluated else None,
        )

    def _restore(self, train_data: Any) -> bool:
        """Goes on from the newest checkpoint, if there is one; to be called by all ranks.

        Returns:
            Whether all batches of the epoch are taken, and only its evaluation is left.

        Raises:
            TypeError: The loader cannot go on in the middle of an epoch.
        """
        if self.checkpoints is None:
            return False
        if not hasattr(train_data, "load_state_dict"):
            raise TypeError(
                f"train_data is a {type(train_data).__name__}, which has no state to save; with "
                "checkpoints, give a loader of make_torch_dataloader."
            )
        restored = self.checkpoints.restore(self.model, self.optimizer, train_data)
        if restored is None:
            return False
        state, ranks = restored.extra, self.ranks
        self.step, self.history = restored.step, state["history"]
        self.should_stop, self.best_weights = state["should_stop"], state["best_weights"]
        self.best_step = state.get("best_step", 0)  # Earlier versions did not keep it.
        self.learning_rate.load_state_dict(state["learning_rate"])
        totals = state["loss_and_rows"]
        if len(totals) == ranks.size:
            self.loss_and_rows = totals[ranks.rank]
        else:  # They were other ranks; all that counts is the sum.
            whole = [sum(column) for column in zip(*totals, strict=True)]
            self.loss_and_rows = whole if ranks.rank == 0 else [0.0, 0.0]
        return bool(state["is_read"])


def _require_loss(loss: object) -> None:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
        return
    returned = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        returned = f"a tensor {list(loss.shape)}" + (
            "" if loss.requires_grad else " without gradient"
        )
    raise TypeError(
        f"train_step returned {returned}; expected a tensor of one number that has a gradient."
    )
