"""How the columns of a batch become the arguments of a network's ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FeatureCols = Sequence[str] | Mapping[str, str | Sequence[str]]
_MASK, _LENGTH = "_mask", "_length"


@dataclass(frozen=True)
class Inputs:
    """Which columns are which arguments of ``forward``.

    Attributes:
        arguments: Columns by argument. Several columns of numbers become one matrix of floats
            ``[rows, columns]``; decoded images become float32 ``[rows, channels, height, width]``
            between 0 and 1. The name ``""`` stands for the first positional argument; one column
            of fractions is a matrix there as well, ``[rows, 1]``.
        extra: Arguments such as ``tokens_mask`` that ``forward`` takes besides, which are made of
            a padded column: ``<argument>_mask`` is true where a row has values, ``[rows, length]``,
            and ``<argument>_length`` says how many, ``[rows]``.
    """

    arguments: Mapping[str, Sequence[str]]
    extra: Sequence[str] = ()

    @classmethod
    def of(cls, feature_cols: FeatureCols, network: torch.nn.Module) -> Inputs:
        """Finds out how a network takes its columns.

        A mapping says it: the columns of each argument. Of a list, columns are arguments if
        ``forward`` has arguments of all these names; otherwise all of them together are the
        first argument.

        Raises:
            ValueError: There are no columns, or ``forward`` has no such argument.
        """
        takes, takes_any = _parameters(network)
        if not feature_cols:
            raise ValueError(
                "feature_cols is empty; it must name the columns that the model takes."
            )
        if isinstance(feature_cols, Mapping):
            arguments = {
                name: (columns,) if isinstance(columns, str) else tuple(columns)
                for name, columns in feature_cols.items()
            }
            unknown = [name for name in arguments if name not in takes and not takes_any]
            if unknown:
                raise ValueError(
                    f"feature_cols names the argument {unknown[0]!r}, and {type(network).__name__}"
                    f".forward takes {', '.join(takes) or 'none'}."
                )
        elif all(column in takes for column in feature_cols):
            arguments = {column: (column,) for column in feature_cols}
        else:
            arguments = {"": tuple(feature_cols)}
        first = next(iter(takes), "")
        extra = [
            name
            for argument in arguments
            for name in ((argument or first) + _MASK, (argument or first) + _LENGTH)
            if name in takes and name not in arguments
        ]
        return cls(arguments, tuple(extra))

    @property
    def columns(self) -> list[str]:
        """All columns, in the order of the arguments."""
        return [column for columns in self.arguments.values() for column in columns]

    def __call__(
        self, batch: Mapping[str, torch.Tensor]
    ) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        """Returns what ``forward`` is called with, by position and by name.

        Args:
            batch: A tensor ``[rows, …]`` by column; of padded columns ``<column>_length`` too.
        """
        positional: list[torch.Tensor] = []
        named: dict[str, torch.Tensor] = {}
        for argument, columns in self.arguments.items():
            value = _joined([batch[column] for column in columns])
            if argument:
                named[argument] = value
            elif value.ndim == 1 and value.is_floating_point():
                # Of two columns it would be [rows, 2]. Whole numbers stay, as embeddings take them.
                positional.append(value[:, None])
            else:
                positional.append(value)
            for name in self.extra:
                # Without a name of its own, the one positional argument owns all extra ones.
                if not argument or name in (argument + _MASK, argument + _LENGTH):
                    named[name] = _extra(name, batch, columns[0])
        return tuple(positional), named

    def shown(self, batch: Mapping[str, Any]) -> str:
        """The call of ``forward`` in words."""
        positional, named = self(batch)
        names = [columns for argument, columns in self.arguments.items() if not argument]
        lines = [
            f"{_shown(value)} (column {', '.join(columns)})"
            for value, columns in zip(positional, names, strict=True)
        ]
        for name, value in named.items():
            columns = self.arguments.get(name, ())
            of = f" (column {', '.join(columns)})" if columns else ""
            lines.append(f"{name}: {_shown(value)}{of}")
        return f"The model was called with {'; '.join(lines)}."


def _shown(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _parameters(network: torch.nn.Module) -> tuple[list[str], bool]:
    """The names of the arguments of ``forward``, and whether it takes any others."""
    known = inspect.signature(network.forward).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in known if parameter.kind in by_name], takes_any


def _joined(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Makes one tensor, which the network takes, of its columns.

    Several become one matrix of floats: of numbers each is a column, lists are joined. Decoded
    images, uint8 ``[rows, height, width, channels]``, become what torchvision's ``ToTensor`` makes
    of them: float32 ``[rows, channels, height, width]`` between 0 and 1.
    """
    import torch

    if len(values) > 1:
        whole = torch.cat(
            [column[:, None] if column.ndim == 1 else column for column in values], dim=1
        )
        return whole if whole.is_floating_point() else whole.float()
    (value,) = values
    if value.dtype == torch.uint8 and value.ndim == 4:
        return value.permute(0, 3, 1, 2).contiguous().float().div_(255)
    return value


def _extra(name: str, batch: Mapping[str, torch.Tensor], column: str) -> torch.Tensor:
    import torch

    if name.endswith(_MASK) and column + _MASK in batch:
        return batch[column + _MASK]
    lengths = batch[column + _LENGTH]
    if name.endswith(_LENGTH):
        return lengths
    places = torch.arange(batch[column].shape[1], device=lengths.device)
    return places < lengths[:, None]


def described(inputs: Inputs) -> dict[str, Any]:
    """As plain JSON."""
    arguments = {name: list(columns) for name, columns in inputs.arguments.items()}
    return {"arguments": arguments, "extra": list(inputs.extra)}
