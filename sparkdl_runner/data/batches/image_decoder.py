"""Decodes the images of a chunk into the memory of its batches."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from typing import Literal

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.batches.chunks import Chunk
from sparkdl_runner.data.batches.sample_threads import SampleThreads
from sparkdl_runner.data.decode.columns import ImageColumn
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.read.arena import Empty
from sparkdl_runner.data.remote.disk_cache import DiskCache
from sparkdl_runner.rank import rank_facts
from sparkdl_runner.tensors.arrays import Array
from sparkdl_runner.tensors.images import BadImageError, decode_image

OnBadImage = Literal["error", "skip"]
ON_BAD_IMAGE: tuple[OnBadImage, ...] = ("error", "skip")


@dataclass(kw_only=True)
class ImageDecoder:
    """Decodes image columns, which stay encoded until their rows are in a batch."""

    columns: Sequence[ImageColumn]
    on_bad_image: OnBadImage
    threads: SampleThreads
    describe: Callable[[int], str]
    """Names a row group, for messages."""
    cache: DiskCache | None
    """The cache for decoded images; None to decode them in each epoch."""
    stopping: threading.Event
    """Set to end the waiting for images that another process decodes."""

    def __post_init__(self) -> None:
        self._decoders = {column.name: _decoder_of(column) for column in self.columns}
        if self.on_bad_image not in ON_BAD_IMAGE:
            raise ValueError(
                f"on_bad_image is {self.on_bad_image!r}; expected one of {', '.join(ON_BAD_IMAGE)}."
            )

    def decode(self, chunk: Chunk, empty: Empty) -> Chunk:
        """Returns the chunk with its images decoded, among its dense entries.

        Raises:
            DatasetError: An image does not decode, and ``on_bad_image`` is ``"error"``.
        """
        if not self.columns:
            return chunk
        rows = int(chunk.bounds[-1])
        dense = dict(chunk.dense)
        bad: dict[int, str] = {}
        for column in self.columns:
            encoded = chunk.encoded[column.name]
            images, *masks = (
                empty(output.name, (rows, *output.shape), output.dtype) for output in column.outputs
            )
            names = [output.name for output in column.outputs]
            dense |= zip(names, (images, *masks), strict=True)
            for mask in masks:
                mask[:] = [value is not None for value in encoded]
            problems = self.threads.map(partial(self._decode, chunk, column, encoded, images), rows)
            bad |= {row: problem for row, problem in enumerate(problems) if problem is not None}
        row_mask = chunk.row_mask
        if self.on_bad_image == "skip":
            row_mask = np.ones(rows, dtype=np.bool_) if row_mask is None else row_mask
            row_mask[list(bad)] = False
        return replace(chunk, dense=dense, row_mask=row_mask, skipped=tuple(bad.values()))

    def _decode(
        self,
        chunk: Chunk,
        column: ImageColumn,
        encoded: Sequence[pa.Buffer | None],
        images: Array,
        row: int,
    ) -> str | None:
        """Decodes one image. Returns what is wrong with one that is to be skipped."""
        value = encoded[row]
        problem = None
        if value is not None:
            try:
                if self.cache is None:
                    decode_image(value, column.size.mode, images[row], column.size.exif)
                    return None

                def pixels() -> memoryview:
                    decode_image(value, column.size.mode, images[row], column.size.exif)
                    return memoryview(images[row].tobytes())

                group, number = chunk.origins.source(row)
                key = f"{self._decoders[column.name]}-{group}-{number}"
                kept = self.cache.get_or_fetch(key, pixels, wait=self.stopping.wait)
                images[row] = np.frombuffer(kept, np.uint8).reshape(column.size.shape)
                return None
            except BadImageError as error:
                group, number = chunk.origins.source(row)
                problem = (
                    f"{self.describe(group)}, column {column.name!r}, row {number:,}: it is {error}"
                )
                if self.on_bad_image == "error":
                    raise DatasetError(
                        f"{problem}. Drop the row before converting, or give on_bad_image='skip', "
                        "which masks such rows and counts them."
                    ) from error
        images[row] = 0
        return problem


def _decoder_of(column: ImageColumn) -> str:
    """16 hex digits that name what makes pixels of a column's images, and their size."""
    what = f"{column.name!r} {column.size} Pillow {metadata.version('pillow')}"
    return hashlib.sha256(what.encode()).hexdigest()[:16]


class SkippedImages:
    """Tells of skipped images: of the first at once, of their number when an epoch ends."""

    def __init__(self) -> None:
        self._epoch, self._count = 0, 0
        self._total = 0

    def add(self, epoch: int, problems: Sequence[str]) -> None:
        """Counts the images that a chunk has skipped.

        Args:
            epoch: The chunk's.
            problems: What is wrong with each.
        """
        if epoch != self._epoch:
            self.tell()
            self._epoch = epoch
        if problems and self._total == 0:
            warnings.warn(
                f"{problems[0]}. It is skipped: row_mask is False for its row. Further ones are "
                "counted, and their number is told when the epoch ends.",
                stacklevel=2,
            )
        self._count += len(problems)
        self._total += len(problems)
        if problems:
            rank_facts.add("skipped_images", len(problems))

    def tell(self) -> None:
        """Warns of how many the epoch has skipped so far, if any; then counts anew."""
        if self._count:
            warnings.warn(
                f"{self._count:,} images of epoch {self._epoch} do not decode and were skipped.",
                stacklevel=2,
            )
        self._count = 0
