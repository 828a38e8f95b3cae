"""Encoded images to pixels, as the training's loader decodes them."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


def decode(
    name: str, encoded: Sequence[bytes | None], size: tuple[int, int, str] | None
) -> npt.NDArray[np.uint8]:
    """Decodes JPEG, PNG or anything else that Pillow reads.

    Args:
        name: The column's.
        encoded: One image a row; of a null a black one is made.
        size: Height, width and mode; images of another size are resized (bilinear).

    Returns:
        uint8 ``[rows, height, width, channels]``.

    Raises:
        ValueError: The bytes are no image that Pillow can read.
    """
    from PIL import Image, UnidentifiedImageError

    assert size is not None  # noqa: S101 - a column of images has one
    height, width, mode = size
    pixels = np.zeros((len(encoded), height, width, _CHANNELS[mode]), dtype=np.uint8)
    for row, value in enumerate(encoded):
        if value is None:
            continue
        try:
            with Image.open(io.BytesIO(value)) as image:
                ready = image.convert(mode)
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            # Of what it cannot identify, Pillow says no more than the address of a buffer.
            detail = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
            raise ValueError(
                f"The column {name!r} has a row that is no image that Pillow can read{detail}."
            ) from error
        if ready.size != (width, height):
            ready = ready.resize((width, height), Image.Resampling.BILINEAR)
        pixels[row] = np.asarray(ready).reshape(pixels.shape[1:])
    return pixels
