"""Makes batches in a thread of its own, a little ahead of the step that uses them."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl_runner.data.batches.chunks import Chunk, Chunker
from sparkdl_runner.data.batches.image_decoder import ImageDecoder, SkippedImages
from sparkdl_runner.data.batches.sample_transform import SampleTransformer
from sparkdl_runner.data.decode.columns import ROW_MASK
from sparkdl_runner.data.order.state import Position

if TYPE_CHECKING:
    from sparkdl_runner.data.batches.device import PinnedRing
    from sparkdl_runner.data.batches.memory import ArrayMemory

Batch = dict[str, Any]
Transform = Callable[[Batch], Mapping[str, Any]]

_CUT_TOGETHER = 32
"""Batches that one call cuts: it is faster than a call for each. More would leave the processor's
cache before they are used."""


@dataclass(frozen=True, kw_only=True)
class _Delivery:
    """Batches of one chunk."""

    epoch: int
    step: int
    batches: Iterable[Batch]
    copied: Any
    """What ``send`` returned: an event after the copy to a GPU, else None."""
    skipped: Sequence[str]
    """The problem of each skipped image."""
    ends_epoch: bool


@dataclass(kw_only=True)
class BatchQueue:
    """One pass over some epochs.

    Images are decoded and samples are transformed when their rows are in a chunk; the transform of
    batches is applied before a batch goes to a device.
    """

    chunker: Chunker
    images: ImageDecoder
    sample_transformer: SampleTransformer | None
    memory: ArrayMemory | PinnedRing
    transform: Transform | None
    start: Position
    end_epoch: int | None
    """The first epoch that is not read; None for no end."""
    stopping: threading.Event
    """Set to end the thread, and what it waits for. One queue after the other has it."""

    def __post_init__(self) -> None:
        # One chunk waits for the caller while the next one is made; the budget allows no more.
        self._queue: queue.Queue[_Delivery | BaseException | None] = queue.Queue(1)
        self._thread = threading.Thread(target=self._run, name="sparkdl-batch-queue", daemon=True)

    def batches(self) -> Iterator[tuple[int, int, Batch]]:
        """Yields epoch, step and batch."""
        self._thread.start()
        skipped = SkippedImages()
        try:
            while True:
                item = self._queue.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                skipped.add(item.epoch, item.skipped)
                if item.ends_epoch:  # Who counts batches asks for no more after the last one.
                    skipped.tell()
                for offset, batch in enumerate(item.batches):
                    self.memory.receive(batch, item.copied)
                    yield item.epoch, item.step + offset, batch
        finally:
            self.stop()
            skipped.tell()

    def stop(self) -> None:
        """Ends the thread; its reads are over when this returns."""
        if self._thread.is_alive():  # A later queue may have begun.
            self.stopping.set()
        while self._thread.is_alive():
            try:  # make room, in case the thread waits to put something
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)

    def _run(self) -> None:
        try:
            self.memory.begin()
            chunks = self.chunker.chunks(
                epoch=self.start.epoch,
                step=self.start.step,
                end_epoch=self.end_epoch,
                empty=self.memory.empty,
            )
            for chunk in chunks:
                if not self._put(self._deliver(chunk)):
                    return
                self.memory.begin()
            self._put(None)
        except BaseException as error:
            self._put(error)
        finally:
            self.chunker.blocks.stop()

    def _put(self, item: _Delivery | BaseException | None) -> bool:
        while not self.stopping.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def _deliver(self, chunk: Chunk) -> _Delivery:
        chunk = self.images.decode(chunk, self.memory.empty)
        if self.sample_transformer is not None:
            chunk = self.sample_transformer.apply(chunk, self.memory.empty)
        wrap = self.memory.wrap
        whole = {name: wrap(array) for name, array in chunk.dense.items()}
        if chunk.row_mask is not None:
            whole[ROW_MASK] = wrap(chunk.row_mask)
        copied = None
        if self.transform is None:
            copied = self.memory.send([whole])
        batches: Iterable[Batch] = itertools.chain.from_iterable(self._split(whole, chunk))
        if chunk.variable:
            batches = list(batches)
            for index, batch in enumerate(batches):
                for name, value in chunk.variable_batch(index).items():
                    batch[name] = wrap(value) if isinstance(value, np.ndarray) else value
            if self.transform is None:
                copied = self.memory.send(batches)
        if self.transform is not None:
            with self.memory.side_stream():
                batches = [_transformed(self.transform, batch) for batch in batches]
                copied = self.memory.send(batches)
        return _Delivery(
            epoch=chunk.epoch,
            step=chunk.step,
            batches=batches,
            copied=copied,
            skipped=chunk.skipped,
            ends_epoch=chunk.step + len(chunk.bounds) - 1 == self.chunker.steps,
        )

    def _split(self, whole: Mapping[str, Any], chunk: Chunk) -> Iterator[list[Batch]]:
        """Cuts a chunk's arrays into its batches: views, not copies, made when they are asked for.

        A few at a time: all at once, the views of small batches would take more memory than the
        rows.
        """
        sizes = np.diff(chunk.bounds).tolist()
        for first in range(0, len(sizes), _CUT_TOGETHER):
            some = sizes[first : first + _CUT_TOGETHER]
            begin, end = chunk.bounds[first], chunk.bounds[first + len(some)]
            batches: list[Batch] = [{} for _ in some]
            for name, array in whole.items():
                parts = self.memory.split(array[begin:end], some)
                for batch, part in zip(batches, parts, strict=True):
                    batch[name] = part
            yield batches


def _transformed(transform: Transform, batch: Batch) -> Batch:
    result = transform(batch)
    if not isinstance(result, Mapping):
        raise TypeError(
            f"transform returned a {type(result).__name__}; expected a dict of tensors, as it was "
            "given."
        )
    return dict(result)
