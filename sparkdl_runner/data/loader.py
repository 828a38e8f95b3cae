"""The loader: batches of a data set, balanced, in an order that anyone can reproduce."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs

from sparkdl_runner.data.batches import expectations
from sparkdl_runner.data.batches.chunks import Chunker
from sparkdl_runner.data.batches.column_plan import plan_columns
from sparkdl_runner.data.batches.device import memory_for
from sparkdl_runner.data.batches.feed import Batch, Feed, Transform
from sparkdl_runner.data.dataset.describe import check_files
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.same_files import Converted, SameFiles
from sparkdl_runner.data.decode.columns import ColumnOptions, Nulls
from sparkdl_runner.data.order.plan import NO_LENGTH, TAILS, Order, Tail, default_lanes
from sparkdl_runner.data.order.shard import global_batch, resolve_shard, whole_number
from sparkdl_runner.data.order.state import LoaderState, Position
from sparkdl_runner.data.read.arena import Arena
from sparkdl_runner.data.read.blocks import BlockLoader
from sparkdl_runner.data.read.budget import Budget, Sizes
from sparkdl_runner.data.read.reader import RowGroupReader
from sparkdl_runner.hooks import facts, loader_plans


class ArrowLoader:
    """Iterates over batches: dicts of torch tensors ``[batch, *shape]`` by column name.

    The order of rows follows from the manifest, seed, epoch, global batch size, lanes and memory
    budget, and from nothing else: not from the number of ranks (as long as it divides the lanes),
    nor from threads or timing. All ranks take the same number of steps.

    The loader is a place in an endless row of epochs. Iterating goes on from there for
    ``num_epochs`` epochs; ``set_epoch`` and ``load_state_dict`` move it. A new iterator takes the
    place over, and the one before is of no more use.

    Args:
        manifest: Describes the data set.
        filesystem: Where it is.
        directory: Its directory in ``filesystem``.
        batch_size: Rows that each rank gets in a step. Give this or ``global_batch_size``.
        global_batch_size: Rows that all ranks together get in a step.
        num_epochs: Epochs of one pass; None never ends.
        seed: 0 is a seed like any other; up to 2**64 - 1.
        shuffle: Whether rows come in another order each epoch. If not, each lane is read in
            order, and without ``lanes`` there is one lane for each rank.
        tail: What to do with rows that do not fill a global batch: ``"drop"`` leaves them out
            (others in each epoch), ``"pad"`` fills up with zeros and adds ``row_mask`` to every
            batch, ``"uneven"`` makes the last batch smaller, on some ranks perhaps empty,
            ``"wrap"`` fills up with the epoch's first rows, which then come twice.
        lanes: Into how many lanes the rows are cut: a multiple of the number of ranks and a
            divisor of the global batch. More lanes mix the data set better, and read more of it
            side by side. By default a power of two up to 8 that divides the global batch and
            fits into the budget, or more where there are more ranks.
        cur_shard: This rank; inside a worker its own by default, elsewhere 0.
        shard_count: Number of ranks; inside a worker its own by default, elsewhere 1.
        memory_budget_bytes: What decoded rows may take, besides the process itself, for a rank
            that reads up to 8 lanes; by default 512 MiB, or 16 times the largest row group if that
            is more. Rows of few bytes take more than that: 16 bytes each for their places. It
            also sets how many rows are shuffled together, so it is
            part of what the order follows from.
        columns: What to read; everything by default.
        feature_cols: Columns of one number per row, to be given as one matrix ``[batch, n]``.
        features_name: What the matrix is called.
        transform: Called with each batch in the loader's own thread, before the batch goes to
            ``device``; returns what to use in its place.
        device: Where tensors go, such as ``"cuda"``: copied ahead of the step that uses them.
        prefetch_batches: Batches made ahead; about 16 MiB of them by default.
        nulls: ``"error"``, ``"fill"`` (with ``fill_value``), ``"nan"`` or ``"mask"`` (filled,
            and ``<name>_mask`` says what was not null), for all columns or by column.
        fill_value: For ``nulls="fill"`` and ``"mask"``.
        pad: Cut or fill lists of different lengths to this length, for all or by column;
            ``<name>_length`` is added.
        pad_value: What to fill with.
        ragged: List columns to be given as values ``[total]`` and ``<name>_offsets``
            ``[batch + 1]``.
        images: Size of encoded images by column: ``(height, width)`` or ``(height, width,
            mode)``, decoded to uint8 ``[batch, height, width, channels]``.
        decimals: ``"float64"`` to accept decimals.
        workers_count: Threads that decode; by default one for each core, up to 4 and to what the
            budget has room for.
        converted: What the converter knows of the files; a file that is another one is refused.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument does not fit the others, the data set or the ranks.
        DatasetError: A file is gone or changed, or a column cannot become a tensor.
    """

    def __init__(
        self,
        manifest: Manifest,
        filesystem: pa.fs.FileSystem,
        directory: str,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        num_epochs: int | None = 1,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "drop",
        lanes: int | None = None,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        memory_budget_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        feature_cols: Sequence[str] | None = None,
        features_name: str = "features",
        transform: Transform | None = None,
        device: Any = None,
        prefetch_batches: int | None = None,
        nulls: Nulls | Mapping[str, Nulls] = "error",
        fill_value: float = 0,
        pad: int | Mapping[str, int] | None = None,
        pad_value: float = 0,
        ragged: Sequence[str] = (),
        images: Mapping[str, Any] | None = None,
        decimals: Literal["error", "float64"] = "error",
        workers_count: int | None = None,
        converted: Converted | None = None,
    ) -> None:
        batch_size = whole_number("batch_size", batch_size)
        global_batch_size = whole_number("global_batch_size", global_batch_size)
        num_epochs = whole_number("num_epochs", num_epochs)
        lanes = whole_number("lanes", lanes)
        cur_shard = whole_number("cur_shard", cur_shard, least=0)
        shard_count = whole_number("shard_count", shard_count)
        memory_budget_bytes = whole_number("memory_budget_bytes", memory_budget_bytes)
        prefetch_batches = whole_number("prefetch_batches", prefetch_batches)
        workers_count = whole_number("workers_count", workers_count)
        if tail not in TAILS:
            raise ValueError(f"tail is {tail!r}; expected one of {', '.join(TAILS)}.")
        seed = whole_number("seed", seed, least=0) or 0
        if seed >= 1 << 64:
            raise ValueError(f"seed is {seed}; expected a whole number from 0 to 2**64 - 1.")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is {transform!r}; expected a function of a batch.")
        self.rank, self.world_size = resolve_shard(cur_shard, shard_count)
        rows = global_batch(batch_size, global_batch_size, self.world_size)
        self.manifest = manifest
        self._layout = plan_columns(
            manifest,
            ColumnOptions(
                columns=columns,
                feature_cols=feature_cols,
                features_name=features_name,
                nulls=nulls,
                fill_value=fill_value,
                pad=pad,
                pad_value=pad_value,
                ragged=ragged,
                images=images,
                decimals=decimals,
            ),
        )
        same = SameFiles(manifest, converted)
        check_files(filesystem, directory, manifest, same)
        self._budget = Budget.of(memory_budget_bytes, manifest, self._layout)
        given_lanes = lanes
        if lanes is None:
            most = self._budget.most_lanes if shuffle else 1
            lanes = default_lanes(global_batch_size=rows, world_size=self.world_size, most=most)
        elif lanes % self.world_size:
            raise ValueError(
                f"lanes={lanes} cannot be shared evenly by {self.world_size} ranks. Give a "
                f"multiple of {self.world_size} that divides the global batch of {rows} rows."
            )
        self._order = Order(
            group_rows=manifest.row_groups.rows,
            global_batch_size=rows,
            lanes=lanes,
            block_rows=self._budget.block_rows,
            seed=seed,
            shuffle=bool(shuffle),
            wrap=tail == "wrap",
        )
        expectations.warn(
            manifest,
            self._layout,
            self._order,
            self._budget,
            tail=tail,
            rank=self.rank,
            world_size=self.world_size,
        )
        if shuffle:  # The loader that is trained with.
            facts.note(
                batch_size_per_rank=rows // self.world_size,
                global_batch_size=rows,
                steps_per_epoch=self._order.steps(tail),
            )
        self._directory = directory
        self._made_at = loader_plans.place_of_caller()
        self._has_told = False
        self._arguments = {
            "batch_size": batch_size,
            "global_batch_size": global_batch_size,
            "num_epochs": num_epochs,
            "seed": seed,
            "shuffle": bool(shuffle),
            "tail": tail,
            "lanes": given_lanes,
            "memory_budget_bytes": memory_budget_bytes,
        }
        self._tail: Tail = tail
        self._num_epochs = num_epochs
        self._transform = transform
        self._prefetch_batches = prefetch_batches
        self._memory = memory_for(device)
        self._threads = workers_count or self._budget.threads(most=min(4, _cores()))
        self._reader = RowGroupReader(manifest, filesystem, directory, same)
        self._pool: ThreadPoolExecutor | None = None
        self._arena: tuple[Sizes, Arena] | None = None
        self._position = Position()
        self._just_moved = False
        self._feed: Feed | None = None
        self._turn = 0
        # Weak, so that leaving a for loop ends the iteration.
        self._active: weakref.ref[Generator[Batch, None, None]] | None = None
        self._closed = False

    def __len__(self) -> int:
        """Steps of one epoch, the same on every rank.

        Raises:
            TypeError: The loader is endless. That is how Python, torch and Lightning learn it.
        """
        if self._num_epochs is None:
            raise TypeError(NO_LENGTH)
        return self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, the same on every rank."""
        return self._order.steps(self._tail)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._position.epoch

    @property
    def step(self) -> int:
        """Steps of that epoch that are done."""
        return self._position.step

    @property
    def global_batch_size(self) -> int:
        """Rows that all ranks together get in a step."""
        return self._order.global_batch_size

    @property
    def lanes(self) -> int:
        """Into how many lanes the rows are cut."""
        return self._order.lanes

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch.

        Right after ``load_state_dict``, moving to the epoch of the state changes nothing, so that
        a loop over epochs that calls this goes on in the middle of the one that was interrupted.
        """
        epoch = whole_number("epoch", epoch, least=0) or 0
        self._refuse_while_iterating("set_epoch")
        if not (self._just_moved and epoch == self._position.epoch):
            self._position = Position(epoch=epoch, first_epoch=epoch)

    def state_dict(self) -> dict[str, Any]:
        """A few numbers that say where the loader stands, equal on every rank.

        Valid after any step: what was read ahead, and not yet handed out, does not count.
        """
        state = LoaderState.of(self._position, self._order, self._tail, self.manifest.fingerprint)
        return state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state`` was taken, on any number of ranks that divides its lanes.

        Raises:
            StateError: It is of another data set, seed, order or global batch size.
        """
        self._refuse_while_iterating("load_state_dict")
        loaded = LoaderState.from_dict(state)
        loaded.check(self._order, self._tail, self.manifest.fingerprint, self.world_size)
        if (loaded.lanes, loaded.block_rows) != (self._order.lanes, self._order.block_rows):
            self._order = replace(self._order, lanes=loaded.lanes, block_rows=loaded.block_rows)
            self._arena = None
        first_epoch = loaded.first_epoch
        if self._num_epochs is not None and loaded.epoch >= first_epoch + self._num_epochs:
            first_epoch = loaded.epoch  # It was saved by a loader with more epochs in a pass.
        self._position = Position(epoch=loaded.epoch, step=loaded.step, first_epoch=first_epoch)
        self._just_moved = True

    def __iter__(self) -> Iterator[Batch]:
        """Goes on from where the loader stands, to the end of the pass.

        An iterator that was made before raises a RuntimeError where it is used again.

        Raises:
            RuntimeError: The loader is closed.
        """
        if self._closed:
            raise RuntimeError("the loader is closed. Make a new one.")
        if self._feed is not None:
            self._feed.stop()  # Both would use the same memory.
        self._turn += 1
        iterator = self._iterate(self._turn)
        self._active = weakref.ref(iterator)
        return iterator

    def _iterate(self, turn: int) -> Generator[Batch, None, None]:
        self._refuse_if_replaced(turn)
        self._tell_plan()
        end_epoch = None
        if self._num_epochs is not None:
            end_epoch = self._position.first_epoch + self._num_epochs
        feed = Feed(
            chunker=self._chunker(),
            memory=self._memory,
            transform=self._transform,
            start=self._position,
            end_epoch=end_epoch,
        )
        self._feed = feed
        steps = self.steps_per_epoch
        try:
            for epoch, step, batch in feed.batches():
                self._just_moved = False
                first = self._position.first_epoch
                done = step + 1
                pass_is_over = done == steps and epoch + 1 == end_epoch
                if done < steps:
                    self._position = Position(epoch=epoch, step=done, first_epoch=first)
                else:
                    self._position = Position(
                        epoch=epoch + 1, first_epoch=epoch + 1 if pass_is_over else first
                    )
                if pass_is_over:  # Who counts batches, as Lightning does, never asks for the end.
                    self._active = None
                yield batch
                if pass_is_over:
                    return
                self._refuse_if_replaced(turn)
        finally:
            feed.stop()
            if turn == self._turn:
                self._feed = self._active = None

    def _tell_plan(self) -> None:
        """Tells the driver, once, what other ranks must do alike to read the other rows."""
        if self._has_told or self.world_size == 1:
            return
        self._has_told = True
        state = self.state_dict()
        order = {name: state[name] for name in state if name not in ("version", "first_epoch")}
        loader_plans.tell(
            self._directory,
            self._made_at,
            order={**order, "num_epochs": self._num_epochs},
            arguments=self._arguments,
        )

    def _chunker(self) -> Chunker:
        mine = self._order.lanes // self.world_size
        lanes = range(self.rank * mine, (self.rank + 1) * mine)
        if self._arena is None:
            sizes = Sizes.of(
                self._budget,
                self._order,
                lanes=mine,
                row_bytes=self._layout.row_bytes,
                threads=self._threads,
                prefetch_batches=self._prefetch_batches,
            )
            arena = Arena(self._layout, pages=sizes.pages, page_rows=sizes.page_rows)
            self._arena = (sizes, arena)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "sparkdl-decode")
        sizes, arena = self._arena
        blocks = BlockLoader(
            order=self._order,
            lanes=lanes,
            columns=self._layout.columns,
            reader=self._reader,
            arena=arena,
            pool=self._pool,
            page_limit=sizes.page_limit,
        )
        return Chunker(
            order=self._order,
            layout=self._layout,
            lanes=lanes,
            tail=self._tail,
            arena=arena,
            blocks=blocks,
            chunk_steps=sizes.chunk_steps,
        )

    def _refuse_if_replaced(self, turn: int) -> None:
        if turn != self._turn:
            raise RuntimeError(
                "this iterator was replaced by a later one: a loader has one place, not two. Use "
                "the later one, or make a second loader."
            )

    def _refuse_while_iterating(self, what: str) -> None:
        if self._active is not None and self._active() is not None:
            raise RuntimeError(
                f"{what} was called while the loader is being iterated: it has one place, not "
                "two. Let the first iteration end (or close() it), or make a second loader."
            )

    def close(self) -> None:
        """Ends an iteration under way, the threads, and lets the memory go."""
        iterator = self._active() if self._active is not None else None
        if iterator is not None:
            iterator.close()
        if self._feed is not None:
            self._feed.stop()
        self._feed = self._active = None
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._reader.close()
        self._arena = None
        self._closed = True

    def __enter__(self) -> ArrowLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
