"""Encoded images to pixels: the same in a loader's batches and in a model's predictions."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
"""By Pillow's name for a mode: grey, colours, colours with alpha."""

Exif = Literal["ignore", "apply"]
_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Pillow's names for what shows an image of an EXIF orientation upright."""


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


class BadImageError(ValueError):
    """Bytes are no image that Pillow can read."""


def decode(
    name: str,
    encoded: Sequence[bytes | None],
    size: tuple[int, int, str] | None,
    exif: Exif = "ignore",
) -> npt.NDArray[np.uint8]:
    """Decodes a column of images.

    Args:
        name: The column's.
        encoded: One image a row; of a null a black one is made.
        size: Height, width and mode.
        exif: As ``decode_image`` takes it.

    Returns:
        uint8 ``[rows, height, width, channels]``.

    Raises:
        ValueError: The bytes are no image that Pillow can read.
    """
    assert size is not None  # noqa: S101 - a column of images has one
    height, width, mode = size
    pixels = np.zeros((len(encoded), height, width, CHANNELS[mode]), dtype=np.uint8)
    for row, value in enumerate(encoded):
        if value is None:
            continue
        try:
            decode_image(value, mode, pixels[row], exif)
        except BadImageError as error:
            raise ValueError(f"The column {name!r} has a row that is {error}.") from error
    return pixels


def decode_image(
    encoded: Any, mode: str, out: npt.NDArray[np.uint8], exif: Exif = "ignore"
) -> None:
    """Decodes JPEG, PNG or anything else that Pillow reads.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size, which its format does at a fraction of the
    cost, as long as that is 1.5 times as high and wide as asked for. The rest of the way is a
    resize: bilinear, each pixel from all those that it covers.

    Args:
        encoded: Bytes, or a buffer of them.
        mode: One of ``CHANNELS``.
        out: uint8 ``[height, width, channels]`` to be filled.
        exif: Whether to turn the image as its EXIF entry says: ``"apply"``.

    Raises:
        BadImageError: Pillow cannot read it.
    """
    from PIL import Image, UnidentifiedImageError

    height, width, _ = out.shape
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            orientation = image.getexif().get(_ORIENTATION, 1) if exif == "apply" else 1
            turn = _TURNS.get(orientation)
            if turn is not None and orientation >= 5:  # Rows become columns.
                height, width = width, height
            drafted = image.draft(mode, (-(-3 * width // 2), -(-3 * height // 2)))
            # The shown part of the smaller image: its last pixels may be of no whole 8 x 8 block.
            box = None if drafted is None else drafted[1]
            image.load()  # Only then is its mode known for certain.
            ready = image if image.mode == mode else image.convert(mode)
            if ready.size != (width, height):
                ready = ready.resize((width, height), Image.Resampling.BILINEAR, box)
            if turn is not None:
                ready = ready.transpose(Image.Transpose[turn])
            out[...] = np.asarray(ready).reshape(out.shape)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever a broken file makes them meet.
        # For data that it cannot identify, Pillow's message has only the address of a buffer.
        detail = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        raise BadImageError(f"no image that Pillow can read{detail}") from error
