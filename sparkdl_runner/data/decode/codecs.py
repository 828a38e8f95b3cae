"""Decodes the binary columns of petastorm's codecs: NumPy arrays, plain and compressed.

Both hold NumPy's own file formats, ``.npy`` and ``.npz``, which are read here without the pickles
that they may hold.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl_runner.data.errors import BadRowError
from sparkdl_runner.tensors.arrays import Array, validity
from sparkdl_runner.tensors.images import ImageSize

_MEMBER = "arr.npy"
"""petastorm's name for the array in an ``.npz``."""
_REMEDY = "Restore the file, or leave the column out with columns=[…]."
_MOST_HEADER_BYTES = 10_000
_WIDENED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}

_Files = npt.NDArray[np.uint8]
"""``[n, size]``: files of one size."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """How the rows of one column become arrays."""

    dtype: np.dtype[Any]
    """In a batch."""
    shape: tuple[int, ...]
    decode: Callable[[pa.Array, float], Array]
    """Takes binary ``[n]`` and what a null's values become; returns ``[n, *shape]``."""


def decoder_of(codec: str, stored: str, lengths: Sequence[int | None]) -> Decoder | ImageSize | str:
    """How a column is decoded: as an image, as arrays, or why not, as the end of a sentence.

    Args:
        codec: The name of the codec's class.
        stored: NumPy's name of the values' type.
        lengths: Shape of a row; None for a length that differs from row to row.
    """
    shape = tuple(length for length in lengths if length is not None)
    try:
        dtype = np.dtype(stored)
    except TypeError:
        dtype = np.dtype(object)
    if len(shape) < len(lengths):
        return f"its arrays differ in shape, {tuple(lengths)}: no tensor has that shape"
    if codec == "CompressedImageCodec":
        if dtype != np.uint8 or len(shape) not in (2, 3) or shape[2:] not in ((), (3,)):
            return f"only images of uint8, grey or of 3 channels, are read, and not {stored}"
        return ImageSize(height=shape[0], width=shape[1], mode="RGB" if shape[2:] else "L")
    if codec not in ("NdarrayCodec", "CompressedNdarrayCodec"):
        return "only petastorm knows what that holds"
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        return f"its values are {stored}, which no tensor holds"
    return Decoder(
        dtype=np.dtype(_WIDENED.get(dtype.name, dtype.name)),
        shape=shape,
        decode=partial(ndarrays, dtype, shape, codec == "CompressedNdarrayCodec"),
    )


def ndarrays(
    stored: np.dtype[Any], shape: tuple[int, ...], compressed: bool, array: pa.Array, fill: float
) -> Array:
    """Decodes ``.npy`` or ``.npz`` files; those with one head are decoded by one copy.

    Args:
        stored: The type of every array. 16, 32 and 64 bits without a sign are widened, as torch
            computes with none of them.
        shape: Of every array.
        compressed: Whether each is an ``.npz``.
        array: Binary ``[n]``.
        fill: What the values of a null become.

    Returns:
        ``[n, *shape]``.

    Raises:
        BadRowError: A row holds no array, or one of another shape or type.
    """
    dtype = np.dtype(_WIDENED.get(stored.name, stored.name))
    result = np.full((len(array), *shape), fill, dtype=dtype)
    rows = np.flatnonzero(validity(array))
    if not len(rows):
        return result
    content, ends = _content(array.drop_null())
    sizes = np.diff(ends)
    if not compressed and (sizes == sizes[0]).all():
        files = content[ends[0] : ends[-1]].reshape(len(rows), -1)
        try:
            result[rows] = _decoded(files, stored, shape)
            return result
        except ValueError:
            pass  # Their heads differ, or one is damaged: the loop says which.
    for number, row in enumerate(rows):
        file = content[ends[number] : ends[number + 1]]
        try:
            file = _unpacked(file, result[row].nbytes + _MOST_HEADER_BYTES) if compressed else file
            result[row] = _decoded(file[None], stored, shape)[0]
        except ValueError as error:
            problem = f"holds no such NumPy array ({error})"
            raise BadRowError(int(row), problem, _REMEDY) from error
    return result


def _content(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of ``n >= 1`` rows, and int64 ``[n + 1]``: where each starts, then the end."""
    array = array.cast(pa.large_binary())
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    return np.frombuffer(b"" if content is None else content, np.uint8), ends


def _decoded(files: _Files, stored: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The values of ``.npy`` files ``[n, size]`` with one head, ``[n, *shape]``.

    Raises:
        ValueError: Their heads differ, or do not say what is expected.
    """
    begin, head_shape, fortran, dtype = _head(files[0, :_MOST_HEADER_BYTES].tobytes())
    if head_shape != shape or dtype.newbyteorder("=") != stored:
        raise ValueError(
            f"its shape is {head_shape} and its type {dtype}; the schema says {shape} and {stored}"
        )
    size = begin + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if files.shape[1] != size:
        raise ValueError(f"it has {files.shape[1]:,} bytes and needs {size:,}")
    if (files[:, :begin] != files[0, :begin]).any():
        raise ValueError("its head is another one's")
    values: Array = np.ascontiguousarray(files[:, begin:]).view(dtype)
    if stored == np.uint64 and (values > np.iinfo(np.int64).max).any():
        raise ValueError("it holds a number above 2^63 - 1, which no tensor does")
    if fortran:
        reverse = range(len(shape), 0, -1)
        return values.reshape(len(files), *shape[::-1]).transpose(0, *reverse)
    return values.reshape(len(files), *shape)


def _head(file: bytes) -> tuple[int, tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the head of an ``.npy``: its length, and shape, Fortran's order and type of the values.

    Raises:
        ValueError: It is none.
    """
    stream = io.BytesIO(file)
    try:
        version = np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]
        if version == (1, 0):
            head = np.lib.format.read_array_header_1_0(stream)  # type: ignore[no-untyped-call]
        else:
            head = np.lib.format.read_array_header_2_0(stream)  # type: ignore[no-untyped-call]
    except Exception as error:  # NumPy parses a head as Python, and lets any error of that out.
        raise ValueError(f"its head is damaged: {str(error)[:100]}") from None
    return stream.tell(), *head


def _unpacked(file: npt.NDArray[np.uint8], most_bytes: int) -> npt.NDArray[np.uint8]:
    """The array's file in an ``.npz``, which is not unpacked if it says that it is larger.

    Raises:
        ValueError: It is larger, or no archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(file.tobytes())) as packed:
            info = packed.getinfo(_MEMBER)
            if info.file_size <= most_bytes:
                return np.frombuffer(packed.read(info), np.uint8)
    except Exception as error:  # zipfile lets those of what it calls out.
        raise ValueError(f"its archive is damaged: {str(error)[:100]}") from None
    raise ValueError(f"it has {info.file_size:,} bytes, {most_bytes:,} at most")
