"""Batches from petastorm's readers, in equally many steps on every rank."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from typing import Any

from sparkdl_runner.base.filesystem import local_path, redact
from sparkdl_runner.data.batch_iterator import CLOSED, BatchIterator
from sparkdl_runner.data.consumers.petastorm import engine
from sparkdl_runner.data.consumers.petastorm.arguments import without_foreign_pickles
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.order.plan import NO_LENGTH
from sparkdl_runner.rank import loader_plans


class PetastormLoader:
    """Batches from petastorm's reader, the same number on every rank, in a new order each epoch.

    petastorm gives row group ``i`` to shard ``i % shard_count``. An epoch has as many steps as
    the smallest shard has full batches, and one where it has none; with one shard it has all rows.
    The last batch of a shard is smaller where its rows do not fill it. Without an end of epochs
    every batch is full: a shard is read again and again. Where rows are filtered while they are
    read, a shard without rows left begins again, until it has made its steps.
    """

    def __init__(
        self,
        files: VerifiedFiles,
        directory_url: str,
        *,
        batch_size: int,
        num_epochs: int | None,
        cur_shard: int,
        shard_count: int,
        seed: int | None,
        steps_per_epoch: int | None,
        unischema: bool,
        data_loader_fn: Callable[..., Any] | None,
        shuffling_queue_capacity: int,
        reader_arguments: Mapping[str, Any],
    ) -> None:
        """Checks the arguments; readers are opened by iterating.

        Args:
            files: The data set; all are checked before each reader is opened.
            directory_url: Where it is.
            batch_size: Rows in a batch of one rank.
            num_epochs: Passes over the data in one iteration; ``None`` for no end.
            cur_shard: Which shard this is, from 0.
            shard_count: Of how many.
            seed: Of the order of row groups; with ``None`` it is petastorm's own choice.
            steps_per_epoch: Instead of the number described above.
            unischema: Whether to decode petastorm's codecs, which unpickles the stored schema.
            data_loader_fn: As in petastorm; ``petastorm.pytorch.DataLoader`` by default.
            shuffling_queue_capacity: As in petastorm.
            reader_arguments: Further arguments of petastorm's reader.

        Raises:
            ImportError: petastorm cannot run here.
            ValueError: The number of steps cannot be known, or some shard has no row.
        """
        engine.require_petastorm()
        scheme = directory_url.partition(":")[0]
        arrow = metadata.version("pyarrow")
        if local_path(directory_url) is None and scheme != "hdfs" and int(arrow.split(".")[0]) > 10:
            raise ImportError(
                f"petastorm reads {scheme}: only with pyarrow below 11, and this is pyarrow "
                f"{arrow}: use engine='arrow'."
            )
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number above 0, not {batch_size!r}.")
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise ValueError(f"steps_per_epoch must be above 0, not {steps_per_epoch}.")
        filtering = {"predicate", "filters", "rowgroup_selector"} & set(reader_arguments)
        self._filtering = bool(filtering)
        self._url = directory_url
        self._files = files
        self._made_at = loader_plans.place_of_caller()
        self._manifest = files.dataset.manifest
        self._has_told = False
        self._batch_size = batch_size
        self._num_epochs = num_epochs
        self._shard = (cur_shard, shard_count)
        self._seed = seed
        self._unischema = unischema
        self._data_loader_fn = data_loader_fn
        self._queue_capacity = shuffling_queue_capacity
        self._reader_arguments = without_foreign_pickles(reader_arguments)
        self._epoch = 0
        self._readers: list[Any] = []
        self._iterators: weakref.WeakSet[BatchIterator] = weakref.WeakSet()
        self._is_closed = False
        self._steps = steps_per_epoch
        if steps_per_epoch is None and not (filtering and shard_count == 1):
            if filtering:
                raise ValueError(
                    f"With {sorted(filtering)[0]} and {shard_count} shards, it is unknown how many "
                    "rows each rank will get: give steps_per_epoch, the same on all ranks."
                )
            self._steps = self._count_steps()
        # A single shard is read to its end; only several shards need equal steps.
        self._wraps = self._steps is not None and (
            shard_count > 1 or steps_per_epoch is not None or num_epochs is None
        )
        self._rounds = self._count_rounds()

    def _count_steps(self) -> int:
        _, count = self._shard
        rows = self._manifest.row_groups.rows
        if count == 1:
            return math.ceil(self._manifest.rows / self._batch_size)
        least = min(int(rows[shard::count].sum()) for shard in range(count))
        if least == 0:
            raise ValueError(
                f"petastorm deals out whole row groups, and {len(rows)} row groups of {count} "
                "shards leave some rank without a batch. Write more of them, by "
                f"df.repartition({count}) before converting, or leave out what only petastorm's "
                "engine can do: the arrow engine deals out rows."
            )
        return max(1, least // self._batch_size)

    def _count_rounds(self) -> int:
        """How often a reader must go through its shard so that each batch of an epoch is full."""
        shard, count = self._shard
        rows = int(self._manifest.row_groups.rows[shard::count].sum())
        if self._num_epochs is not None or not self._steps or not rows or self._filtering:
            return 1
        return math.ceil(self._steps * self._batch_size / rows)

    def __len__(self) -> int:
        """Steps of one epoch.

        Raises:
            TypeError: Epochs never end, or the number of rows behind a filter is unknown.
        """
        if self._num_epochs is None:
            raise TypeError(NO_LENGTH)
        return self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch.

        Raises:
            TypeError: The number of rows behind a filter is unknown.
        """
        if self._steps is None:
            raise TypeError("How many rows pass is known only after reading: give steps_per_epoch.")
        return self._steps

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next iteration begins with; orders differ between epochs."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Begins the epoch after the last one, also where that was left early.

        Raises:
            RuntimeError: The loader is closed. So does an iterator that was made before.
        """
        if self._is_closed:
            raise RuntimeError(CLOSED)
        iterator = BatchIterator(self._epochs())
        self._iterators.add(iterator)
        return iterator

    def _epochs(self) -> Generator[Any, None, None]:
        if self._shard[1] > 1 and not self._has_told:
            # The seed is left out: which rows a rank reads does not depend on it.
            plan = {
                "batch_size": self._batch_size,
                "num_epochs": None if self._num_epochs is None else int(self._num_epochs),
                "steps_per_epoch": None if self._steps is None else int(self._steps),
            }
            shared = {"shard_count": self._shard[1], "fingerprint": self._manifest.fingerprint}
            order = {**plan, **shared}
            loader_plans.tell(self._url, self._made_at, order=order, arguments=plan)
            self._has_told = True
        epochs = itertools.count() if self._num_epochs is None else range(self._num_epochs)
        for _ in epochs:
            epoch, self._epoch = self._epoch, self._epoch + 1
            yield from self._one_epoch(epoch)

    def _one_epoch(self, epoch: int) -> Iterator[Any]:
        made = 0
        for turn in itertools.count():
            before = made
            for batch in self._one_pass(epoch, turn):
                made += 1
                yield batch
                if self._wraps and made == self._steps:
                    return
            if not self._wraps:
                return
            if made == before:
                raise DatasetError(
                    f"petastorm's reader found no row for shard {self._shard[0]} of "
                    f"{self._shard[1]} in {redact(self._url)}: its filter lets nothing through."
                )

    def _one_pass(self, epoch: int, turn: int) -> Iterator[Any]:
        with engine.quiet():
            from petastorm.pytorch import DataLoader

        reader = self._open_reader(epoch, turn)
        self._readers.append(reader)
        make_loader = self._data_loader_fn or DataLoader
        try:
            yield from make_loader(
                reader=reader,
                batch_size=self._batch_size,
                shuffling_queue_capacity=self._queue_capacity,
            )
        finally:
            # Stop only this iterator's reader: the next iterator may have begun, with another.
            self._stop(reader)

    def _open_reader(self, epoch: int, turn: int) -> Any:
        with engine.quiet():
            from petastorm import make_batch_reader, make_reader

        self._files.check_all()
        arguments = dict(self._reader_arguments, num_epochs=self._rounds)
        if self._shard[1] > 1:
            arguments["cur_shard"], arguments["shard_count"] = self._shard
        if self._seed is not None:
            # petastorm takes 0 for "no seed", and repeats one order for as long as a reader lives.
            arguments["seed"] = 1 + (self._seed * 1_000_003 + epoch * 1009 + turn) % (2**31 - 2)
        with engine.quiet():
            # petastorm also takes any seed as its deprecated shard_seed, with a warning.
            if self._unischema:
                return make_reader(self._url, **arguments)
            from sparkdl_runner.data.consumers.petastorm.listed_files import ListedFiles

            # A file that the manifest does not list is never read, and neither is a
            # _common_metadata, whose schema petastorm would unpickle.
            files = ListedFiles(self._files)
            return make_batch_reader(files.urls, filesystem=files, **arguments)

    def close(self) -> None:
        """Stops petastorm's threads; nothing is read after it."""
        self._is_closed = True
        for iterator in tuple(self._iterators):
            with suppress(ValueError):  # Another thread is in it; the reader's end ends it.
                iterator.close(CLOSED)
        for reader in tuple(self._readers):
            self._stop(reader)

    def _stop(self, reader: Any) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            reader.stop()
            reader.join()
