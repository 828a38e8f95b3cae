"""The columns of a table as a network's inputs, and the conversion of their values to tensors.

Values come as Spark, MLflow or a person has them in pandas, or as Arrow has them; both are first
brought to ``Values``, and then to tensors as the training's loader makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Nulls = Literal["error", "fill", "nan", "mask"]
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


class BadColumnError(ValueError):
    """A column's values are not what the network takes."""


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
    exif: Literal["ignore", "apply"] = "ignore"

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
            return height, width, _CHANNELS[mode]
        return self.shape if self.pad is None else (self.pad, *self.shape[1:])

    @property
    def fill(self) -> float:
        """The value that replaces a null."""
        return float("nan") if self.nulls == "nan" else self.fill_value


@dataclass(frozen=True, kw_only=True)
class Values:
    """A column's values in one piece.

    Attributes:
        flat: All numbers in order; or bytes, one entry a row (None for a null).
        lengths: Of the lists at each depth, from the outside in; the first has an entry for each
            row, and a null list has the length 0.
        valid: Which rows are not null; None if all are.
        valid_numbers: Which numbers of ``flat`` are not null; None if all are.
    """

    flat: Any
    lengths: tuple[Array, ...] = ()
    valid: Array | None = None
    valid_numbers: Array | None = None


def tensors(column: Column, values: Values) -> dict[str, torch.Tensor]:
    """Returns a column's entries of a batch: itself, and its mask or its lengths if it has any.

    Raises:
        BadColumnError: It holds nulls, or lists of other lengths than the network takes.
    """
    import torch

    mask: Array | None = None
    if column.kind == "image":
        from .images import decode

        _refuse_nulls(column, values.valid)
        made = {column.name: decode(column.name, values.flat, column.image, column.exif)}
        mask = values.valid
    elif column.kind == "number":
        numbers, mask = _numbers(column, values.flat, values.valid)
        made = {column.name: numbers}
    else:
        _refuse_nulls(column, values.valid)
        numbers, valid_numbers = _numbers(column, values.flat, values.valid_numbers)
        if column.pad is not None:
            made = _padded(column, numbers, values)
        else:
            made, mask = _dense(column, numbers, values, valid_numbers)
    if column.nulls == "mask":
        whole = next(iter(made.values()))
        shape = whole.shape if column.kind == "list" else whole.shape[:1]
        made[column.name + "_mask"] = np.ones(shape, dtype=np.bool_) if mask is None else mask
    return {name: torch.from_numpy(_writable(one)) for name, one in made.items()}


def numbers_of(column: Column, values: Values) -> Array:
    """A column of one number a row, ``[rows]``; where it holds no null, of the type that it has.

    Raises:
        BadColumnError: It holds nulls that the network does not take.
    """
    flat = values.flat
    if values.valid is None and flat.dtype.kind == np.dtype(column.dtype).kind:
        return flat  # type: ignore[no-any-return]
    return _numbers(column, flat, values.valid)[0]


def _numbers(column: Column, flat: Array, valid: Array | None) -> tuple[Array, Array | None]:
    _refuse_nulls(column, valid)
    dtype = np.dtype(column.dtype)
    if valid is not None:
        numbers = np.full(len(flat), column.fill, dtype=dtype)
        numbers[valid] = flat[valid]
        return numbers, valid
    if flat.dtype.kind == "f" and dtype.kind in "iub":
        # pandas turns whole numbers with nulls into floats with NaN.
        missing = np.isnan(flat)
        if missing.any():
            return _numbers(column, flat, ~missing)
    return flat.astype(dtype, copy=False), None


def _refuse_nulls(column: Column, valid: Array | None) -> None:
    if valid is not None and column.nulls == "error":
        raise BadColumnError(null_sentence(column.name))


def null_sentence(name: str) -> str:
    """The message for a column with nulls that the model does not take."""
    return (
        f"The column {name!r} holds a null, and the model was fitted with nulls='error'. Drop "
        "these rows, fill them, or fit with nulls='fill', 'nan' or 'mask'."
    )


def _dense(
    column: Column, numbers: Array, values: Values, valid_numbers: Array | None
) -> tuple[dict[str, Array], Array | None]:
    """``[rows, *shape]`` numbers, and which of them were not null."""
    shape = []
    for depth, lengths in enumerate(values.lengths):
        expected = column.shape[depth] if depth < len(column.shape) else None
        present = lengths if depth or values.valid is None else lengths[values.valid]
        size = expected if expected is not None else int(present[0]) if len(present) else 0
        wrong = np.flatnonzero(present != size)
        if len(wrong):
            takes = f"the model takes {size}" if expected is not None else f"others have {size}"
            raise BadColumnError(
                f"The column {column.name!r} has a row with a list or vector of length "
                f"{present[wrong[0]]}, and {takes}. Give it rows of this length, or fit with "
                f"pad={{{column.name!r}: …}}."
            )
        shape.append(size)
    if values.valid is None:
        made = numbers.reshape(len(values.lengths[0]), *shape)
        mask = None if valid_numbers is None else valid_numbers.reshape(made.shape)
        return {column.name: made}, mask
    made = np.full((len(values.valid), *shape), column.fill, dtype=numbers.dtype)
    made[values.valid] = numbers.reshape(-1, *shape)
    mask = np.zeros(made.shape, dtype=np.bool_)
    kept = True if valid_numbers is None else valid_numbers.reshape(-1, *shape)
    mask[values.valid] = kept
    return {column.name: made}, mask


def _padded(column: Column, numbers: Array, values: Values) -> dict[str, Array]:
    """Lists of any length, each cut or filled up, and how much of each is real."""
    length, outer = column.pad or 0, values.lengths[0]
    inner = [int(one[0]) if len(one) else 0 for one in values.lengths[1:]]
    for place, lengths in enumerate(values.lengths[1:]):
        expected = column.shape[1 + place] if 1 + place < len(column.shape) else None
        inner[place] = expected if expected is not None else inner[place]
        if (lengths != inner[place]).any():
            raise BadColumnError(
                f"The lists inside of the lists of the column {column.name!r} differ in length, "
                f"and the model takes {inner[place]}."
            )
    sizes = np.minimum(outer, length)
    real = np.arange(length) < sizes[:, None]
    starts = np.cumsum(outer) - outer
    place = (starts[:, None] + np.arange(length))[real]
    made = np.zeros((len(outer), length, *inner), dtype=numbers.dtype)
    made[real] = numbers.reshape(-1, *inner)[place]
    return {column.name: made, f"{column.name}_length": sizes.astype(np.int64)}


def _writable(array: Array) -> Array:
    # torch warns of memory that it must not write to, such as Arrow's.
    return array if array.flags.writeable else array.copy()
