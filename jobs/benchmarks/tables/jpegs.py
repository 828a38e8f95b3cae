"""Encoded images that compress about as photographs do."""

from __future__ import annotations

import io

import numpy as np


def jpegs(width: int, height: int, count: int) -> list[bytes]:
    """Soft shapes with grain; one in eight is new."""
    from PIL import Image

    random = np.random.default_rng(0)
    pictures = []
    for _ in range(-(-count // 8)):
        shapes = random.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
        soft = Image.fromarray(shapes).resize((width, height), Image.Resampling.BICUBIC)
        grain = random.normal(0, 5, (height, width, 1)).astype(np.int16)
        pixels = (np.asarray(soft) + grain).clip(0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format="JPEG", quality=75)
        pictures.append(stream.getvalue())
    return (pictures * 8)[:count]
