"""Puts together what makes a loader's batches: files, decoding threads, memory and the queue."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdl_runner.base.cores import usable_cores
from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.batches.batch_queue import BatchQueue, Transform
from sparkdl_runner.data.batches.chunks import Chunker
from sparkdl_runner.data.batches.image_decoder import ImageDecoder, OnBadImage
from sparkdl_runner.data.batches.sample_threads import SampleThreads
from sparkdl_runner.data.batches.sample_transform import SampleTransform, SampleTransformer
from sparkdl_runner.data.decode.columns import CollatedColumn, Layout
from sparkdl_runner.data.order.plan import Order, Tail
from sparkdl_runner.data.order.state import Position
from sparkdl_runner.data.read.arena import Arena
from sparkdl_runner.data.read.blocks import BlockLoader
from sparkdl_runner.data.read.costs import DataCosts
from sparkdl_runner.data.read.memory_plan import MemoryLimit, MemoryPlan
from sparkdl_runner.data.read.reader import RowGroupReader
from sparkdl_runner.data.remote.cache_choice import DECODED
from sparkdl_runner.data.remote.disk_cache import DiskCache

if TYPE_CHECKING:
    from sparkdl_runner.data.batches.device import PinnedRing
    from sparkdl_runner.data.batches.memory import ArrayMemory


@dataclass(kw_only=True)
class Pipeline:
    """From row groups to batches; threads and memory are kept from one iteration to the next."""

    layout: Layout
    limit: MemoryLimit
    costs: DataCosts
    reader: RowGroupReader
    memory: ArrayMemory | PinnedRing
    transform: Transform | None
    sample_transform: SampleTransform | None
    on_bad_image: OnBadImage
    image_cache: DiskCache | None
    """The cache for decoded images; None to decode them in each epoch."""
    workers_count: int | None
    """Row groups decoded at a time; None decides by the cores and the limit."""
    prefetch_batches: int | None
    """Batches made ahead; None decides by their size."""

    def __post_init__(self) -> None:
        self.prefetch_batches = whole_number("prefetch_batches", self.prefetch_batches)
        self.workers_count = whole_number("workers_count", self.workers_count)
        if self.transform is not None and not callable(self.transform):
            raise TypeError(f"transform is {self.transform!r}; expected a function of a batch.")
        self._samples = SampleThreads(self.workers_count)
        self._transformer: SampleTransformer | None = None
        if self.sample_transform is not None:
            for column in self.layout.ragged:
                if isinstance(column, CollatedColumn):
                    raise ValueError(
                        f"sample_transform is called with each row, and {column.name!r} is packed "
                        "or padded batch by batch. Change it by transform, or give it by ragged."
                    )
            self._transformer = SampleTransformer(self.sample_transform, self._samples)
        if self.image_cache is not None and not self.layout.images:
            raise ValueError(
                f"cache_type={DECODED!r} keeps decoded images, and no column that is read has "
                "encoded ones. Name their size by images={…}, or give another cache_type."
            )
        self._images = ImageDecoder(
            columns=self.layout.images,
            on_bad_image=self.on_bad_image,
            threads=self._samples,
            describe=self.reader.describe,
            cache=self.image_cache,
            stopping=self.reader.stopping,
        )
        self.pool: ThreadPoolExecutor | None = None
        self._arena: tuple[Order, MemoryPlan, Arena] | None = None

    @property
    def skips_images(self) -> bool:
        """Whether rows whose image does not decode are masked."""
        return bool(self.layout.images) and self.on_bad_image == "skip"

    def queue(
        self,
        order: Order,
        lanes: Sequence[int],
        tail: Tail,
        start: Position,
        end_epoch: int | None,
    ) -> BatchQueue:
        """Prepares one pass over a rank's lanes; the queue before must have been stopped."""
        if self._arena is None or self._arena[0] is not order:
            self._arena = None  # Free the earlier arena before making one as large.
            plan = MemoryPlan.of(
                self.limit,
                self.costs,
                order,
                lanes=len(lanes),
                most_threads=min(4, usable_cores()),
                threads=self.workers_count,
                prefetch_batches=self.prefetch_batches,
            )
            arena = Arena(
                self.layout, pages=plan.pages, page_rows=plan.page_rows, shuffle=order.shuffle
            )
            self._arena = (order, plan, arena)
            self.reader.allow_more(plan.remote_bytes)
        self.reader.stopping.clear()
        _, plan, arena = self._arena
        if self.pool is None:
            self.pool = ThreadPoolExecutor(plan.threads, "sparkdl-decode")
        blocks = BlockLoader(
            order=order,
            lanes=lanes,
            columns=self.layout.columns,
            reader=self.reader,
            arena=arena,
            pool=self.pool,
            plan=plan,
        )
        chunker = Chunker(
            order=order,
            layout=self.layout,
            lanes=lanes,
            tail=tail,
            arena=arena,
            blocks=blocks,
            chunk_steps=plan.chunk_steps,
        )
        return BatchQueue(
            chunker=chunker,
            images=self._images,
            sample_transformer=self._transformer,
            memory=self.memory,
            transform=self.transform,
            start=start,
            end_epoch=end_epoch,
            stopping=self.reader.stopping,
        )

    def close(self) -> None:
        """Ends the threads, closes the files and lets the memory go."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
            self.pool = None
        self._samples.close()
        self.reader.close()
        if self.image_cache is not None:
            self.image_cache.close()
        self.memory.release()
        self._arena = None
