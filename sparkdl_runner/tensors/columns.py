"""A column of a table as a network's input: the same tensors as the training's loader makes.

Both read Arrow's arrays by ``arrays``, ``ragged`` and ``images``: the loader by the plan of its
data set, and a prediction, which knows no more than a batch, by the ``Column`` of the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from .arrays import Array, Leaf, dense, holds, is_list, leaf_of, lists, validity
from .errors import BadColumnError, BadValueError, UnexpectedNullError, WrongLengthError
from .images import CHANNELS, Exif, decode
from .ragged import keep_numbers, padded

if TYPE_CHECKING:
    import torch

Nulls = Literal["error", "fill", "nan", "mask"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column that a network takes.

    Attributes:
        name: The column's name.
        kind: ``"number"``: one a row; ``"list"``: an array or vector of numbers, nested or not;
            ``"image"``: encoded bytes.
        dtype: NumPy's name for the type of the tensor.
        shape: Of one row. None is a length that is not known; without ``pad`` all rows of a batch
            must agree on it.
        pad: To what length the outermost lists are cut or filled up.
        nulls: What becomes of nulls, as ``make_torch_dataloader`` takes it.
        fill_value: What nulls become.
        image: Height, width and Pillow's mode of every decoded image.
        exif: Whether an image is turned as its EXIF entry says.
    """

    name: str
    kind: Literal["number", "list", "image"] = "number"
    dtype: str = "float32"
    shape: tuple[int | None, ...] = ()
    pad: int | None = None
    nulls: Nulls = "error"
    fill_value: float = 0
    image: tuple[int, int, str] | None = None
    exif: Exif = "ignore"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Column:
        """Reads what ``to_json`` has written."""
        image = value["image"]
        return cls(
            **{
                **value,
                "shape": tuple(value["shape"]),
                "image": None if image is None else (image[0], image[1], image[2]),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        fields = asdict(self)
        if self.exif == "ignore":  # Models of before have no such entry.
            del fields["exif"]
        return fields

    @property
    def row_shape(self) -> tuple[int | None, ...]:
        """The shape of a row of the tensor."""
        if self.image is not None:
            height, width, mode = self.image
            return height, width, CHANNELS[mode]
        return self.shape if self.pad is None else (self.pad, *self.shape[1:])

    @property
    def fill(self) -> float | None:
        """The value that replaces a null; None where a training refuses nulls."""
        if self.nulls == "error" or (self.nulls == "mask" and self.pad is not None):
            return None
        value = float("nan") if self.nulls == "nan" else self.fill_value
        return value if self.kind == "image" or holds(np.dtype(self.dtype), value) else None


def tensors(column: Column, array: pa.Array) -> dict[str, torch.Tensor]:
    """Returns a column's entries of a batch: itself, and its mask or its lengths if it has any.

    Args:
        column: What it holds.
        array: ``[rows]`` numbers, lists of numbers, or bytes.

    Raises:
        BadColumnError: It holds nulls, or other values than the network takes.
    """
    import torch

    # torch warns of memory that it must not write to, such as Arrow's.
    return {
        name: torch.from_numpy(values if values.flags.writeable else values.copy())
        for name, values in entries(column, array).items()
    }


def entries(column: Column, array: pa.Array) -> dict[str, Array]:
    """What ``tensors`` returns, as NumPy's arrays, which may be Arrow's own memory."""
    try:
        if array.null_count and column.fill is None:
            raise UnexpectedNullError
        array = _with_type(column, array)
        if column.kind == "image":
            made = decode(column.name, array.to_pylist(), column.image, column.exif)
            return _masked(column, made, validity(array))
        lengths, leaf = _form(column, array)
        if column.pad is None:
            is_masked = column.nulls == "mask"
            return _masked(column, *dense(array, lengths, leaf, column.fill, masked=is_masked))
        rows = keep_numbers(array, lengths[1:], leaf, column.fill)
        made, sizes = padded(rows, column.pad, lengths[1:], leaf.dtype, 0)
        return {column.name: made, f"{column.name}_length": sizes}
    except BadColumnError as error:
        raise BadColumnError(_sentence(column, error)) from error


def _masked(column: Column, made: Array, mask: Array | None) -> dict[str, Array]:
    masks = {f"{column.name}_mask": mask} if column.nulls == "mask" and mask is not None else {}
    return {column.name: made, **masks}


def _with_type(column: Column, array: pa.Array) -> pa.Array:
    """The array, of bytes where it holds images, and of numbers where all of them are null."""
    inner = array.type
    while is_list(inner):
        inner = inner.value_type
    is_image = column.kind == "image"
    if not (is_image or pa.types.is_null(inner)):
        return array
    wanted = pa.binary() if is_image else pa.from_numpy_dtype(np.dtype(column.dtype))
    for _ in column.shape:
        wanted = pa.list_(wanted)
    try:
        return array if array.type == wanted else array.cast(wanted)
    except pa.ArrowException:
        raise BadColumnError(_other_type(column, array)) from None


def _form(column: Column, array: pa.Array) -> tuple[tuple[int, ...], Leaf]:
    """The lengths of the lists at each depth, and how the innermost values become numbers.

    If the training did not fix a length, all lists must be as long as the first one.
    """
    lengths: list[int] = []
    values = array
    while is_list(values.type):
        known = column.shape[len(lengths)] if len(lengths) < len(column.shape) else None
        offsets, inner = lists(values)
        if known is None:
            sizes = np.diff(offsets)[validity(values)]
            known = int(sizes[0]) if len(sizes) else 0
        lengths.append(known)
        values = inner
    leaf = leaf_of(values.type, decimals="float64")
    if isinstance(leaf, str) or len(lengths) != len(column.shape):
        raise BadColumnError(_other_type(column, array))
    dtype = np.dtype(column.dtype)
    if leaf.dtype != dtype:
        # A number may be rounded where the model takes fractions, and nowhere else.
        cast = () if dtype.kind == "f" else (("cast", pa.from_numpy_dtype(dtype)),)
        leaf = Leaf(dtype=dtype, steps=(*leaf.steps, *cast))
    return tuple(lengths), leaf


def _sentence(column: Column, error: BadColumnError) -> str:
    if isinstance(error, UnexpectedNullError):
        return null_sentence(column)
    if isinstance(error, BadValueError):
        return f"The column {column.name!r} {error.problem}; the model takes {column.dtype} there."
    if isinstance(error, WrongLengthError):
        takes = "others have" if None in column.shape else "the model takes"
        or_pad = "" if column.pad is not None else f", or fit with pad={{{column.name!r}: …}}"
        return (
            f"The column {column.name!r} has a row with a list or vector of length "
            f"{error.length}, and {takes} {error.expected}. Give it rows of this length{or_pad}."
        )
    return str(error)


def null_sentence(column: Column) -> str:
    """The message for a column with nulls that the model does not take."""
    reason, rules = "", "nulls='fill', 'nan' or 'mask'"
    if column.nulls == "mask":
        reason, rules = " and with pad=, beside which there is no mask", "nulls='fill' or 'nan'"
    elif column.nulls != "error":
        value = "NaN" if column.nulls == "nan" else column.fill_value
        reason, rules = f", and {column.dtype} does not hold {value}", "another rule"
    return (
        f"The column {column.name!r} holds a null, and the model was fitted with "
        f"nulls={column.nulls!r}{reason}. Drop these rows, fill them, or fit with {rules}."
    )


def _other_type(column: Column, array: pa.Array) -> str:
    takes = {"number": "numbers", "image": "encoded images, as bytes,"}.get(
        column.kind, "lists or arrays of numbers"
    )
    value = next((scalar for scalar in array if scalar.is_valid), None)
    held = "" if value is None else f" and holds {str(value.as_py())[:50]!r}"
    return (
        f"The column {column.name!r} is of type {array.type}{held}; the model takes {takes} there."
    )
