"""Metrics of torchmetrics over the rows of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparkdl_runner.training.loop.ranks import Ranks


class Metrics:
    """Metrics by name; of a model with several labels, by label and name.

    Args:
        metrics: Of torchmetrics.
        labels: The label columns.
        ranks: Over which they are computed.
    """

    def __init__(self, metrics: Mapping[str, Any], labels: Sequence[str], ranks: Ranks) -> None:
        self._by_label: dict[str, dict[str, Any]] = {label: {} for label in labels}
        for name, value in metrics.items():
            if isinstance(value, Mapping):
                self._by_label[name] = {
                    f"{name}_{inner}": metric for inner, metric in value.items()
                }
            else:
                self._by_label[labels[0]][name] = value
        self._ranks = ranks
        for metric in self._all().values():
            metric.to(ranks.device)
            metric.reset()

    def update(self, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Adds the rows of a batch: by label, outputs and truths ``[rows, …]``."""
        for label, metrics in self._by_label.items():
            output, truth = pairs[label]
            if len(truth):
                for metric in metrics.values():
                    metric.update(output, truth)

    def compute(self) -> dict[str, float]:
        """The values over all ranks' rows; each metric begins anew after this.

        Raises:
            TypeError: One is neither a number nor a list or dict of numbers.
        """
        numbers: dict[str, float] = {}
        for name, metric in self._all().items():
            self._connect(metric)
            with warnings.catch_warnings():
                # A rank without rows has updated nothing, and takes part all the same.
                warnings.filterwarnings("ignore", "The ``compute`` method of metric")
                value = metric.compute()
            numbers |= _numbers(name, value)
            metric.reset()
        return numbers

    def _all(self) -> dict[str, Any]:
        return {
            name: metric for metrics in self._by_label.values() for name, metric in metrics.items()
        }

    def _connect(self, metric: Any) -> None:
        """Lets a metric, and those inside of it, gather their states by these ranks."""
        for part in metric.modules():
            if not hasattr(part, "update_count"):
                continue
            counts = self._ranks.gather(torch.tensor(part.update_count, device=self._ranks.device))
            # The state of a rank without rows is no value that it has seen.
            seen = [rank for rank, count in enumerate(counts) if count] or [0]

            def gather(state: Tensor, group: Any = None, seen: list[int] = seen) -> list[Tensor]:
                states = self._ranks.gather(state)
                return [states[rank] for rank in seen]

            self._require_equal_lists(part)
            part.dist_sync_fn = gather
            part.distributed_available_fn = lambda: self._ranks.size > 1

    def _require_equal_lists(self, metric: Any) -> None:
        """Raises ValueError for lists that torchmetrics would gather one by one, and wait for ever.

        Those that it joins first, as AUROC's, may differ.
        """
        from torchmetrics.utilities import dim_zero_cat

        lengths = [
            len(getattr(metric, name))
            for name, reduction in metric._reductions.items()
            if reduction is not dim_zero_cat and isinstance(getattr(metric, name), list)
        ]
        if not lengths:
            return
        each = self._ranks.gather(torch.tensor([lengths], device=self._ranks.device))
        if any(not torch.equal(of_rank, each[0]) for of_rank in each):
            raise ValueError(
                f"{type(metric).__name__} keeps a list for each row or batch, and ranks have "
                "different numbers of them. Compute it after the training, from predictions."
            )


def _numbers(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {
            key: number
            for part, inner in value.items()
            for key, number in _numbers(f"{name}_{part}", inner).items()
        }
    values = torch.as_tensor(value)
    if values.numel() == 1:
        return {name: float(values)}
    if values.ndim == 1:
        return {f"{name}_{place}": float(number) for place, number in enumerate(values)}
    raise TypeError(
        f"The metric {name!r} has values {list(values.shape)}; expected a number, or one for each "
        "class."
    )
