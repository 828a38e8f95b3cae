"""The objects that a caller saves or restores: a model, its optimizer, a loader, and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.base.unwrapping import is_sharded, unwrapped

_PREFIX = "stateful-"


@dataclass(frozen=True, kw_only=True)
class Stateful:
    """The objects whose states make up a checkpoint; None is left out."""

    model: Any
    optimizer: Any
    loader: Any
    others: Mapping[str, Any] = field(default_factory=dict)
    """By the caller's own names, such as a scheduler."""

    @classmethod
    def of(cls, model: Any, optimizer: Any, loader: Any, others: Mapping[str, Any]) -> Stateful:
        """Checks what a caller gave, and leaves out what wraps a module.

        Raises:
            TypeError: One of the others has no state, or is a sharded module.
        """
        given = {name: unwrapped(item) for name, item in others.items() if item is not None}
        for name, item in given.items():
            if not all(callable(getattr(item, m, None)) for m in ("state_dict", "load_state_dict")):
                raise TypeError(
                    f"{name}= is a {type(item).__name__}; expected an object with state_dict() and "
                    "load_state_dict(). Numbers by name go into metrics=, other values into extra=."
                )
            if hasattr(item, "parameters") and is_sharded(item):
                raise TypeError(
                    f"{name}= is a module of which each rank has a part; only model= can be one."
                )
        return cls(model=unwrapped(model), optimizer=optimizer, loader=loader, others=given)

    @property
    def is_model_alone(self) -> bool:
        """Whether there is a model, and nothing that only a training has."""
        has_more = self.optimizer is not None or self.loader is not None or bool(self.others)
        return self.model is not None and not has_more


def state_name(name: str) -> str:
    """The name of another object's state in a checkpoint."""
    return f"{_PREFIX}{name}"
