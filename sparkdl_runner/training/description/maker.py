"""Something that is made on each rank, by a call that the driver describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Maker:
    """A call whose arguments are made when it happens, so that each call makes new things.

    Args:
        function: What is called.
        arguments: By name. Makers among them, also in lists, are called first.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self, *given: Any) -> Any:
        """Calls the function with ``given`` and the arguments."""
        return self.function(
            *given, **{name: made(argument) for name, argument in self.arguments.items()}
        )


def made(value: Any) -> Any:
    """Calls a Maker, or each Maker in a list; returns any other value as it is."""
    if isinstance(value, Maker):
        return value()
    return [made(item) for item in value] if isinstance(value, list) else value


def sequential(layers: list[Any]) -> Any:
    """A model of layers, each of which takes what the one before it returns."""
    from torch import nn

    return nn.Sequential(*layers)
