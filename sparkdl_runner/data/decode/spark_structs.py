"""Spark's own structs as they are stored: the numbers of ML vectors, the pixels of images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.tensors.arrays import Array, as_numpy, lists, validity


def decode_schema(array: pa.Array, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Reads the pixels of Spark's ImageSchema.

    Spark stores them row by row as OpenCV does, blue first; see org.apache.spark.ml.image.

    Args:
        array: Structs ``[n]`` with ``height``, ``width``, ``nChannels`` and ``data``.
        shape: Height, width and channels of every image.

    Returns:
        uint8 ``[n, height, width, channels]``, red first (alpha last, where there are four).
    """
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    valid = validity(fields["data"])
    data = fields["data"].drop_null().cast(pa.large_binary())
    _, offset_buffer, content = data.buffers()
    begin = data.offset * 8
    ends = np.frombuffer(offset_buffer, np.int64, len(data) + 1, begin) if len(data) else [0]
    sizes = np.diff(ends)
    if (sizes != np.prod(shape)).any():
        raise DatasetError(
            f"an image of {int(sizes[sizes != np.prod(shape)][0]):,} bytes was found where "
            f"{shape[0]} x {shape[1]} x {shape[2]} bytes were expected (only images of 8 bits per "
            "channel are read)"
        )
    result = np.zeros((len(array), *shape), dtype=np.uint8)
    pixels = np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]].reshape(len(data), *shape)
    if shape[2] >= 3:
        order = [2, 1, 0, 3][: shape[2]]
        pixels = pixels[..., order]
    result[valid] = pixels
    return result


def vectors(array: pa.Array, size: int, fill: float | None) -> Array:
    """Spark's ML vectors, dense or sparse, as stored: float64 ``[n, size]``.

    ``type`` is 1 for a dense vector, all of whose numbers are in ``values``, and 0 for a sparse
    one, whose ``values`` belong to ``indices``; see VectorUDT in Spark's ML library.
    """
    result = np.zeros((len(array), size), dtype=np.float64)
    # flatten() carries the struct's own nulls down to its fields.
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    offsets, values = lists(fields["values"])
    sizes = np.diff(offsets)
    numbers = as_numpy(values)
    is_dense = as_numpy(pc.fill_null(pc.equal(fields["type"], 1), False).cast(pa.uint8())) == 1
    wrong = sizes[is_dense] != size
    if wrong.any():
        raise DatasetError(
            f"a vector of size {sizes[is_dense][wrong][0]} was found where the manifest says that "
            f"all have size {size}"
        )
    from_dense = np.repeat(is_dense, sizes)
    result[is_dense] = numbers[from_dense].reshape(int(is_dense.sum()), size)
    if not is_dense.all():
        index_offsets, indices = lists(fields["indices"])
        owner = np.repeat(np.arange(len(array)), np.diff(index_offsets))
        keep = ~is_dense[owner]
        result[owner[keep], as_numpy(indices)[keep]] = numbers[~from_dense]
    if array.null_count:
        result[~validity(array)] = fill or 0
    return result
