"""Rows that a network takes: one tensor, or one for each of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Place = tuple[str, int]
"""An argument, and one of the dimensions of its tensor."""

# From an example of one row, torch makes a graph for one row.
MIN_ROWS = 2


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example of the arguments that a network takes.

    Attributes:
        tensors: ``[rows, …]`` by argument, in order. Of an only tensor the argument is ``""``.
        by_name: Whether they are given by name.
    """

    tensors: Mapping[str, torch.Tensor]
    by_name: bool = False

    @classmethod
    def of(cls, given: Any, network: torch.nn.Module) -> Example:
        """The example as rows of their own: a part of another tensor would be exported as such.

        Args:
            given: A tensor or array; a tuple of them, by position; or a mapping, by name.
            network: It tells the names of what is given by position.

        Raises:
            ValueError: There are no rows, or the tensors differ in how many they have.
        """
        by_name = isinstance(given, Mapping)
        if isinstance(given, Mapping):
            named = {str(name): _own(value) for name, value in given.items()}
        elif isinstance(given, tuple):
            # A network that takes any number of them has no names for them.
            known = [parameter.name for parameter in _positional(network)][: len(given)]
            known += [f"input_{place}" for place in range(len(known), len(given))]
            named = {name: _own(value) for name, value in zip(known, given, strict=True)}
        else:
            named = {"": _own(given)}
        counts = {len(tensor) if tensor.ndim else 0 for tensor in named.values()}
        if not counts or 0 in counts:
            raise ValueError(
                "log_model: input_example has no rows; give some that the network takes."
            )
        if len(counts) > 1:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in named.items())
            raise ValueError(
                f"log_model: the tensors of input_example differ in their rows ({shapes}); the "
                "first dimension of each is the rows."
            )
        if counts.pop() < MIN_ROWS:
            named = {
                name: tensor.repeat(MIN_ROWS, *[1] * (tensor.ndim - 1))
                for name, tensor in named.items()
            }
        return cls(tensors=named, by_name=by_name)

    @property
    def is_one_tensor(self) -> bool:
        """Whether the network is given one tensor, which has no name."""
        return "" in self.tensors

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.tensors.values())))

    @property
    def rows(self) -> tuple[Place, ...]:
        """The dimension of the rows, of each argument."""
        return tuple((name, 0) for name in self.tensors)

    def call(self, network: Any) -> Any:
        """Calls the network with these rows."""
        return network(**self.tensors) if self.by_name else network(*self.tensors.values())

    def answer(self, network: Any) -> dict[str, torch.Tensor]:
        """The network's outputs by name, with the random generator seeded alike each time.

        Raises:
            TypeError: They are no tensors.
        """
        import torch

        from sparkdl_runner.tracking.models.column_model import named_outputs  # It imports mlflow.

        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return {
                name: output.detach() for name, output in named_outputs(self.call(network)).items()
            }

    def resized(self, sizes: Mapping[Place, int]) -> Example:
        """The rows with other sizes: their values are moved on by one and repeated."""
        import torch

        tensors = dict(self.tensors)
        for (name, dimension), size in sizes.items():
            places = torch.arange(1, size + 1) % tensors[name].shape[dimension]
            tensors[name] = tensors[name].index_select(dimension, places).contiguous()
        return replace(self, tensors=tensors)


def _own(given: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(given).detach().cpu().contiguous()


def _positional(network: torch.nn.Module) -> list[inspect.Parameter]:
    known = inspect.signature(network.forward).parameters.values()
    return [parameter for parameter in known if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
