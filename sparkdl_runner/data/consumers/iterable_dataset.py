"""Batches of a conversion as a ``torch.utils.data.IterableDataset`` that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.batch_iterator import CLOSED, REPLACED
from sparkdl_runner.data.batches.shard_group import Shard, shard_of
from sparkdl_runner.data.consumers.engine_choice import wanted_tail
from sparkdl_runner.data.consumers.loader_context import DEFAULT_BATCH_SIZE
from sparkdl_runner.data.order.plan import NO_LENGTH
from sparkdl_runner.data.order.shard import global_batch

if TYPE_CHECKING:
    from sparkdl_runner.data.batch_iterator import BatchIterator
    from sparkdl_runner.data.batches.batch_queue import Batch
    from sparkdl_runner.data.batches.loader import ArrowLoader
    from sparkdl_runner.data.consumers.loader_context import TorchLoaderContext


class BatchDataset(IterableDataset):
    """Gives the batches of this rank, for a ``DataLoader(…, batch_size=None)`` around it.

    With torchdata's ``StatefulDataLoader`` a training resumes after the batch that it took last.
    Each iteration is the next epoch, also where the one before was left early, unless ``set_epoch``
    or a state says otherwise.

    Without workers it reads ahead by threads of its own. With ``num_workers``, each worker process
    reads its own lanes, and all take equally many steps. So the order of rows, and the state,
    depend on ``num_workers``, and not on the number of ranks.
    """

    def __init__(
        self,
        make_loader: Callable[..., TorchLoaderContext],
        rows: int,
        arguments: Mapping[str, Any],
        num_workers: int,
    ) -> None:
        """Made by ``SparkDatasetConverter.make_iterable_dataset``."""
        given = {name: value for name, value in arguments.items() if value is not None}
        self.num_workers = whole_number("num_workers", num_workers, least=0) or 0
        """Worker processes of the ``DataLoader`` around it."""
        self._num_epochs = whole_number("num_epochs", given.get("num_epochs"))
        shard = given.get("shard_by"), given.get("cur_shard"), given.get("shard_count")
        self._rank, self._ranks = shard_of(*shard)
        if given.get("batch_size") is None and given.get("global_batch_size") is None:
            given["batch_size"] = DEFAULT_BATCH_SIZE
        sizes = given.get("batch_size"), given.get("global_batch_size")
        self._batch_rows = global_batch(*sizes, self._ranks)
        given.setdefault("tail", wanted_tail(given, rows))
        if self.num_workers:
            for name in ("global_batch_size", "shard_by", "cur_shard", "shard_count"):
                given.pop(name, None)
            given["batch_size"] = self._batch_rows // self._ranks
        make_loader(**given)  # Checks the arguments' names.
        self._make_loader, self._rows, self._arguments = make_loader, rows, given
        # One for each worker, in memory that the workers of all iterations share with this process.
        self._next_epoch = torch.zeros(max(1, self.num_workers), dtype=torch.int64)
        self._next_epoch.share_memory_()
        self._is_moved = False
        self._resume_from: Mapping[str, Any] | None = None
        self._loader: ArrowLoader | None = None
        self._batches: BatchIterator | None = None

    def __len__(self) -> int:
        """Batches of one iteration, the same on every rank.

        Raises:
            TypeError: The data set is endless.
        """
        if self._num_epochs is None:
            raise TypeError(NO_LENGTH)
        return self._num_epochs * self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch, the same on every rank."""
        workers = max(1, self.num_workers)
        full, rest = divmod(self._rows, self._batch_rows * workers)
        return workers * (full if self._arguments["tail"] == "drop" or not rest else full + 1)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin at the start of an epoch.

        Right after ``load_state_dict``, the epoch of that state changes nothing.
        """
        epoch = whole_number("epoch", epoch, least=0) or 0
        if self._resume_from is None or self._resume_from.get("epoch") != epoch:
            self._resume_from = None
            self._next_epoch[:] = epoch
            self._is_moved = True

    def state_dict(self) -> dict[str, Any]:
        """A few numbers that say where the batches stand, equal on every rank.

        With workers, the ``StatefulDataLoader`` saves and restores the state of each.
        """
        if self._resume_from is not None:
            return dict(self._resume_from)
        return self._open().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on where ``state`` was taken.

        Raises:
            StateError: It is of another data set, seed, order or batch size, or of another
                ``num_workers``.
        """
        self._end_pass(REPLACED)
        self._open().load_state_dict(state)
        self._resume_from = dict(state)

    def __iter__(self) -> Iterator[Batch]:
        """Begins the next epoch, or goes on from a state.

        Raises:
            ValueError: The ``DataLoader`` has another number of workers.
        """
        loader, worker = self._open(), self._worker()
        self._end_pass(REPLACED)
        is_begun = True
        if self._resume_from is not None:
            state = loader.state_dict()
            is_begun = (state["epoch"], state["step"]) != (state["first_epoch"], 0)
        elif self.num_workers or self._is_moved:  # Each worker may live for one iteration.
            loader.set_epoch(int(self._next_epoch[worker]))
        self._resume_from, self._is_moved = None, False
        self._batches = batches = iter(loader)
        if not self.num_workers:
            return batches
        # A pass as a whole: workers read ahead, and no two ranks equally far.
        first_epoch = loader.state_dict()["first_epoch"]
        self._next_epoch[worker] = first_epoch + ((self._num_epochs or 1) if is_begun else 0)
        return self._in_worker(batches, loader, worker)

    def _in_worker(
        self, batches: BatchIterator, loader: ArrowLoader, worker: int
    ) -> Iterator[Batch]:
        yield from batches
        self._next_epoch[worker] = max(int(self._next_epoch[worker]), loader.epoch)

    def _end_pass(self, reason: str) -> None:
        """Ends an iteration under way."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close(reason)

    def _worker(self) -> int:
        """The number of this worker process; 0 where there are none."""
        worker = get_worker_info()
        workers = 0 if worker is None else worker.num_workers
        if workers != self.num_workers:
            raise ValueError(
                f"The DataLoader has num_workers={workers}, and this data set was made with "
                f"num_workers={self.num_workers}: each worker would read the wrong rows. Give both "
                "the same number. With 0 the data set reads ahead by threads of its own, which is "
                "faster unless transform= takes long."
            )
        return 0 if worker is None else int(worker.id)

    def _open(self) -> ArrowLoader:
        """The loader of this process, opened if need be."""
        worker = self._worker()
        if self._loader is None:
            arguments = dict(self._arguments)
            if self.num_workers:
                # Lanes of one step of all ranks lie together, whatever their number.
                number = worker * self._ranks + self._rank
                arguments["shard_by"] = Shard(number, of=self._ranks * self.num_workers)
            loader: ArrowLoader = self._make_loader(**arguments).__enter__()
            loader.set_epoch(int(self._next_epoch[worker]))
            if self._resume_from is not None:
                loader.load_state_dict(self._resume_from)
            self._loader = loader
        return self._loader

    def close(self) -> None:
        """Ends an iteration under way and the threads of this process, and closes the files.

        They are opened again if the data set is iterated again.
        """
        self._end_pass(CLOSED)
        loader, self._loader = self._loader, None
        if loader is not None:
            if not (self.num_workers or self._is_moved):
                self._next_epoch[0] = loader.epoch + (loader.step > 0)
            loader.close()

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens its own files.
        return {**self.__dict__, "_loader": None, "_batches": None}
