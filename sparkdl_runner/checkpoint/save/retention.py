"""Which checkpoints stay, and how the others are removed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkdl_runner.base.whole_number import require_whole
from sparkdl_runner.checkpoint.directory.listing import attempts_in, committed, written
from sparkdl_runner.checkpoint.directory.manifest import MANIFEST, Manifest, Name, read_manifest
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import DamageError

Mode = Literal["min", "max"]


@dataclass(kw_only=True)
class Retention:
    """How many checkpoints are kept; the arguments are those of ``CheckpointManager``."""

    keep_last: int
    keep_best: int | None
    best_metric: str | None
    best_mode: Mode
    _metrics: dict[Name, Mapping[str, float]] = field(default_factory=dict)
    _removing: set[Name] = field(default_factory=set)
    """Those whose removal has begun; the storage may have failed in the middle of it."""

    def __post_init__(self) -> None:
        require_whole("keep_last", self.keep_last, least=1)
        if self.keep_best is None:
            self.keep_best = int(self.best_metric is not None)
        require_whole("keep_best", self.keep_best, least=0)
        if self.best_mode not in ("min", "max"):
            raise ValueError(f"best_mode is {self.best_mode!r}; expected 'min' or 'max'.")
        if bool(self.keep_best) != (self.best_metric is not None):
            raise ValueError(
                f"keep_best is {self.keep_best} and best_metric is {self.best_metric!r}; they go "
                "together. Name the metric by which a checkpoint is best, or leave both out."
            )

    def require_metric(self, metrics: Mapping[str, Any] | None) -> None:
        """Raises ValueError if there are metrics, and not the one that says what is best."""
        if metrics and self.best_metric is not None and self.best_metric not in metrics:
            raise ValueError(
                f"metrics has {', '.join(map(str, metrics))}, and best_metric is "
                f"{self.best_metric!r}. Save it too, or name one of these; without any metrics a "
                "checkpoint is kept as one of the newest only."
            )

    def apply(self, storage: Storage, new: Manifest) -> None:
        """Removes what need not stay, now that ``new`` is committed.

        Also what earlier attempts left unfinished, or committed after their end. To be called again
        if the storage fails: what is left then is removed by the next call.
        """
        names = storage.names()
        if max(attempts_in(names), default=-1) > new.attempt:
            return  # What is there is another attempt's now.
        checkpoints = committed(storage, names)
        if new.name not in checkpoints:
            return  # Something is odd with this storage: remove nothing.
        self._metrics[new.name] = new.metrics
        if self.keep_best:
            for name in checkpoints - self._metrics.keys():
                try:
                    self._metrics[name] = read_manifest(storage, name).metrics
                except DamageError:
                    self._metrics[name] = {}
        unfinished = {name for name in written(names) - checkpoints if name.attempt < new.attempt}
        unfinished |= self._removing - checkpoints  # Also those of which a directory alone is left.
        for name in sorted(checkpoints - self._kept(checkpoints, new.name)) + sorted(unfinished):
            self._removing.add(name)
            remove(storage, str(name), [path for path in names if path.startswith(f"{name}/")])
            self._removing.discard(name)
            self._metrics.pop(name, None)

    def _kept(self, names: Iterable[Name], new: Name) -> set[Name]:
        """Which of the checkpoints stay; the new one always does, as it is known to be good."""
        newest = sorted(names, reverse=True)
        sign = 1 if self.best_mode == "min" else -1
        metric = self.best_metric or ""
        values = {name: sign * self._metrics.get(name, {}).get(metric, math.nan) for name in newest}
        ranked = [name for name in newest if not math.isnan(values[name])]
        ranked.sort(key=lambda name: (values[name], -name.step))
        return {new, *newest[: self.keep_last], *ranked[: self.keep_best]}


def remove(storage: Storage, directory: str, names: Iterable[str]) -> None:
    """Removes files of a checkpoint, and its directory once that is empty.

    The manifest goes first, so that no checkpoint is half there.
    """
    manifest, files = f"{directory}/{MANIFEST}", set(names)
    if manifest in files:
        storage.delete(manifest)
    storage.delete_directory(directory, files - {manifest})
