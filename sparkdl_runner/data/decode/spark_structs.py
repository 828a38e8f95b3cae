"""The size of encoded images in a batch, and the pixels of Spark's ImageSchema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl_runner.data.decode.arrays import validity
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.network.images import CHANNELS, Exif


@dataclass(frozen=True, kw_only=True)
class ImageSize:
    """The size and mode of every decoded image of a column."""

    height: int
    width: int
    mode: str = "RGB"
    """Pillow's name: ``L`` (grey), ``RGB`` or ``RGBA``."""
    exif: Exif = "ignore"
    """Whether the image is turned as its EXIF entry says, as viewers show it: ``"apply"``."""

    @classmethod
    def of(cls, name: str, value: Any) -> ImageSize:
        """Reads ``(height, width)``, ``(height, width, mode)``, or a dict of the fields by name.

        Raises:
            ValueError: It is neither, or the mode is unknown.
        """
        if isinstance(value, ImageSize):
            return value
        try:
            if not isinstance(value, Mapping):
                value = dict(zip(("height", "width", "mode"), value, strict=len(value) > 3))
            size = cls(**{**value, "height": int(value["height"]), "width": int(value["width"])})
        except (TypeError, ValueError, KeyError):
            size = None
        if (
            size is None
            or min(size.height, size.width) < 1
            or size.mode not in CHANNELS
            or size.exif not in ("ignore", "apply")
        ):
            raise ValueError(
                f"images[{name!r}] is {value!r}; expected (height, width), (height, width, mode) "
                "or a dict of height, width, mode and exif, with mode one of "
                f"{', '.join(CHANNELS)}, and exif 'ignore' or 'apply'."
            )
        return size

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        return self.height, self.width, CHANNELS[self.mode]


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
