"""Which checkpoints stay, and how the others go: the manifest first, so that none is half there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparkdl_runner.checkpoint.directory import attempts
from sparkdl_runner.checkpoint.directory.files import DamageError
from sparkdl_runner.checkpoint.directory.manifest import MANIFEST, Manifest, Name
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.directory.verify import read_manifest

Mode = Literal["min", "max"]


@dataclass(kw_only=True)
class Retention:
    """How many checkpoints are kept."""

    keep_last: int
    keep_best: int
    best_metric: str | None
    best_mode: Mode
    _metrics: dict[Name, Mapping[str, float]] = field(default_factory=dict)

    def apply(self, storage: Storage, new: Manifest) -> None:
        """Removes what need not stay, now that ``new`` is committed.

        Also what earlier attempts left unfinished, or committed after their end.
        """
        if attempts.later_attempt(storage, new.attempt) is not None:
            return  # What is there is another attempt's now.
        names = storage.names()
        visible = attempts.visible(storage, names)
        if new.name not in visible:
            return  # Something is odd with this storage: remove nothing.
        self._metrics[new.name] = new.metrics
        if self.keep_best:
            for name in visible - self._metrics.keys():
                try:
                    self._metrics[name] = read_manifest(storage, name).metrics
                except DamageError:
                    self._metrics[name] = {}
        stay = self.kept(visible, new.name)
        for name in sorted(visible - stay):
            self._metrics.pop(name, None)
            remove(storage, name, names)
        unfinished = attempts.written(names) - visible
        for name in sorted(unfinished):
            if name.attempt < new.attempt:
                remove(storage, name, names)

    def kept(self, names: Iterable[Name], new: Name) -> set[Name]:
        """Which of the checkpoints stay; the new one always does, as it is known to be good."""
        newest = sorted(names, reverse=True)
        sign = 1 if self.best_mode == "min" else -1

        def rank(name: Name) -> tuple[float, int]:
            return sign * self._value(name), -name.step

        with_value = [name for name in newest if not math.isnan(self._value(name))]
        best = sorted(with_value, key=rank)[: self.keep_best] if self.keep_best else []
        return {new, *newest[: self.keep_last], *best}

    def _value(self, name: Name) -> float:
        return self._metrics.get(name, {}).get(self.best_metric or "", math.nan)


def remove(storage: Storage, name: Name, names: Iterable[str]) -> None:
    """Removes a checkpoint.

    Args:
        storage: Where it is.
        name: Which one.
        names: All files there.
    """
    manifest = f"{name}/{MANIFEST}"
    storage.delete(manifest)
    for path in names:
        if path.startswith(f"{name}/") and path != manifest:
            storage.delete(path)
    storage.delete_directories(str(name))
