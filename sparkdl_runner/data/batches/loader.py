"""The loader: batches of a data set, balanced, in an order that anyone can reproduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pyarrow import fs

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.batch_iterator import BatchIterator
from sparkdl_runner.data.batches.batch_queue import BatchQueue, Transform
from sparkdl_runner.data.batches.columns.plan import plan_columns
from sparkdl_runner.data.batches.epoch_iterator import EpochIterator
from sparkdl_runner.data.batches.expectations import check_memory
from sparkdl_runner.data.batches.image_decoder import OnBadImage
from sparkdl_runner.data.batches.memory import ArrayMemory
from sparkdl_runner.data.batches.order_arguments import OrderArguments
from sparkdl_runner.data.batches.pipeline import Pipeline
from sparkdl_runner.data.batches.sample_transform import SampleTransform
from sparkdl_runner.data.batches.shard_group import shard_of
from sparkdl_runner.data.batches.shared_order import SharedOrder
from sparkdl_runner.data.dataset.converted import Converted
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.decode.columns import ColumnOptions
from sparkdl_runner.data.order.plan import NO_LENGTH, Tail
from sparkdl_runner.data.order.state import Position
from sparkdl_runner.data.read.costs import DataCosts
from sparkdl_runner.data.read.memory_plan import MemoryLimit
from sparkdl_runner.data.read.reader import RowGroupReader
from sparkdl_runner.data.remote.cache_choice import DECODED, open_cache
from sparkdl_runner.tensors.columns import Nulls

if TYPE_CHECKING:
    import torch

    from sparkdl_runner.data.batches.device import PinnedRing


class ArrowLoader:
    """Iterates over batches: dicts of torch tensors ``[batch, *shape]`` by column name.

    The order of rows follows from the manifest, seed, epoch, global batch size, lanes,
    ``window_row_groups`` and ``balance``, and from nothing else: not from the number of ranks (as
    long as it divides the lanes), nor from memory, threads or timing. All ranks take the same
    number of steps.

    Each iteration begins an epoch and takes ``num_epochs`` of them: the one that ``set_epoch``
    names, else the one after the last, also where that was left early. Only the same iterator, or
    the first after ``load_state_dict``, goes on in the middle. A new iterator ends the one before.

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
            (different ones in each epoch), ``"pad"`` fills up with zeros and adds ``row_mask`` to
            every batch, ``"uneven"`` makes the last batch smaller, on some ranks perhaps empty,
            ``"wrap"`` fills up with the epoch's first rows, which then come twice.
        lanes: Into how many lanes the rows are cut: a multiple of the number of ranks and a
            divisor of the global batch. More mix better. By default a power of two up to 8 that
            divides the global batch, or more where there are more ranks.
        window_row_groups: Row groups that each lane reads side by side, and so how many mix: those
            of all lanes together. By default as many as a small memory can hold, up to 32.
        cur_shard: This rank; inside a worker its own by default, elsewhere 0.
        shard_count: Number of ranks; inside a worker its own by default, elsewhere 1.
        shard_by: In their place, a dimension of a ``DeviceMesh``, such as ``mesh["dp"]``, or a
            process group: ranks along it read different rows, and count as the ranks here.
        memory_budget_bytes: What reading may take, besides the process itself: decoded rows and
            their places in the order, row groups that are partly read, decoding threads, and
            batches made ahead. The order does not depend on it: a larger one is faster, and one
            that is too little for the order is refused. By default 512 MiB, or a quarter of what
            the rank may have.
        columns: What to read; everything by default.
        feature_cols: Columns of one number per row, to be given as one matrix ``[batch, n]``.
        features_name: What the matrix is called.
        transform: Called in the loader's thread with each batch; returns what replaces it.
        sample_transform: Called with each row, in threads, one for each core of this rank; returns
            what replaces it, a dict of numbers, arrays, texts or bytes, the same entries for each
            row. If it has a second argument, that is a ``numpy.random.Generator`` of the seed, the
            epoch and the row's place in it: the same in a second run and at any number of ranks.
        device: Where tensors go, such as ``"cuda"``: copied ahead of the step that uses them.
            ``"numpy"`` for batches of NumPy arrays, which need no torch.
        prefetch_batches: Batches made ahead; about 16 MiB of them by default.
        nulls: ``"error"``, ``"fill"`` (with ``fill_value``), ``"nan"`` or ``"mask"`` (filled,
            and ``<name>_mask`` says what was not null), for all columns or by column.
        fill_value: For ``nulls="fill"`` and ``"mask"``.
        pad: Cut or fill lists to this length, for all or by column; adds ``<name>_length``.
            ``"longest"`` fills them up to the longest of a rank's batch.
        pad_value: What to fill with.
        pad_multiple: What the length of the longest is rounded up to a multiple of.
        pack: List columns whose rows are to be packed into sequences, by the length of one. Gives
            ``<name>`` ``[sequences, length]``, ``<name>_document_ids`` and ``<name>_positions`` of
            the same shape, and ``<name>_cu_seqlens`` ``[pieces + 1]``.
        ragged: List columns to be given as values ``[total]`` and ``<name>_offsets``
            ``[batch + 1]``.
        balance: A column whose rows differ in length (lists, texts, bytes): each rank's step gets
            about as much of it as any other. Rows are moved between the steps of their block.
        images: Size of encoded images by column: ``(height, width)``, ``(height, width, mode)`` or
            a dict of these and ``exif="apply"``; uint8 ``[batch, height, width, channels]``.
        on_bad_image: What to do with a row whose image does not decode: ``"error"`` stops,
            ``"skip"`` makes it black, adds ``row_mask`` to every batch, False for such rows, and
            warns how many there were when an epoch ends.
        decimals: ``"float64"`` to accept decimals.
        workers_count: Threads that decode; by default one a core, up to 4, as the budget allows.
        cache_type: ``"local-disk"`` to keep row groups of remote storage on the local disk for
            later epochs and trainings, for all ranks of the host, which is the default in ranks
            on Spark, and in others that share a host; ``"decoded"`` to keep decoded images as
            well, also of files that are local; ``"null"`` for no cache.
        cache_location: A folder there; by default Spark's for local files, or the temporary one.
        cache_size_limit: Bytes that all caches of this user there may take; by default half of
            what is free, or 1 GiB in the temporary folder if no type is given.
        converted: What the converter remembers of the files; a file that has changed is refused.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument does not fit the others, the data set or the ranks.
        DatasetError: A file is gone or changed, or a column cannot become a tensor.
    """

    def __init__(
        self,
        manifest: Manifest,
        filesystem: fs.FileSystem,
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
        shard_by: Any = None,
        window_row_groups: int | None = None,
        memory_budget_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        feature_cols: Sequence[str] | None = None,
        features_name: str = "features",
        transform: Transform | None = None,
        sample_transform: SampleTransform | None = None,
        device: Any = None,
        prefetch_batches: int | None = None,
        nulls: Nulls | Mapping[str, Nulls] = "error",
        fill_value: float = 0,
        pad: int | Literal["longest"] | Mapping[str, int | Literal["longest"]] | None = None,
        pad_value: float = 0,
        pad_multiple: int = 1,
        pack: Mapping[str, int] | None = None,
        ragged: Sequence[str] = (),
        balance: str | None = None,
        images: Mapping[str, Any] | None = None,
        on_bad_image: OnBadImage = "error",
        decimals: Literal["error", "float64"] = "error",
        workers_count: int | None = None,
        cache_type: Literal["null", "local-disk", "decoded"] | None = None,
        cache_location: str | None = None,
        cache_size_limit: int | None = None,
        converted: Converted | None = None,
    ) -> None:
        arguments = OrderArguments(
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            num_epochs=num_epochs,
            seed=seed,
            shuffle=shuffle,
            tail=tail,
            lanes=lanes,
            window_row_groups=window_row_groups,
            balance=balance,
        )
        cache_size_limit = whole_number("cache_size_limit", cache_size_limit)
        limit = MemoryLimit.of(whole_number("memory_budget_bytes", memory_budget_bytes))
        self.rank, self.world_size = shard_of(shard_by, cur_shard, shard_count)
        arguments.global_batch(self.world_size)  # Refused before a file is looked at.
        self.manifest = manifest
        self.layout = layout = plan_columns(
            manifest,
            ColumnOptions(
                columns=columns,
                feature_cols=feature_cols,
                features_name=features_name,
                nulls=nulls,
                fill_value=fill_value,
                pad=pad,
                pad_value=pad_value,
                pad_multiple=whole_number("pad_multiple", pad_multiple) or 1,
                pack=pack,
                ragged=ragged,
                images=images,
                decimals=decimals,
            ),
        )
        files = VerifiedFiles(Dataset(manifest, filesystem, directory), converted)
        files.check_share(self.rank, self.world_size)
        cache = open_cache(cache_type, cache_location, cache_size_limit, files)
        is_shared = self.world_size > 1 or shard_by is not None
        shard, told_as = (self.rank, self.world_size), directory if is_shared else None
        self._shared = SharedOrder(arguments, manifest, layout, shard, told_as)
        is_local = files.dataset.is_local
        costs = DataCosts.of(manifest, layout, is_local=is_local)
        check_memory(limit, costs, self._shared.order, len(self._shared.rank_lanes))
        files_bytes = limit.files_bytes(is_local=is_local)
        self._pipeline = Pipeline(
            layout=layout,
            limit=limit,
            costs=costs,
            reader=RowGroupReader(files, cache=cache, memory_bytes=files_bytes),
            memory=_memory_of(device),
            transform=transform,
            sample_transform=sample_transform,
            on_bad_image=on_bad_image,
            image_cache=cache if cache_type == DECODED else None,
            workers_count=workers_count,
            prefetch_batches=prefetch_batches,
        )
        self._passes = EpochIterator(arguments.num_epochs)

    def __len__(self) -> int:
        """Steps of one epoch, the same on every rank.

        Raises:
            TypeError: The loader is endless. That is how Python, torch and Lightning learn it.
        """
        if self._passes.num_epochs is None:
            raise TypeError(NO_LENGTH)
        return self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, the same on every rank."""
        return self._shared.steps

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._passes.position.epoch

    @property
    def step(self) -> int:
        """Steps of that epoch that are done."""
        return self._passes.position.step

    @property
    def global_batch_size(self) -> int:
        """Rows that all ranks together get in a step."""
        return self._shared.order.global_batch_size

    @property
    def lanes(self) -> int:
        """Into how many lanes the rows are cut."""
        return self._shared.order.lanes

    @property
    def has_row_mask(self) -> bool:
        """Whether batches have ``row_mask``: some rows only fill up, or may have a bad image."""
        return self._shared.tail == "pad" or self._pipeline.skips_images

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch.

        Right after ``load_state_dict``, moving to the epoch of the state changes nothing, so that
        a loop over epochs that calls this goes on in the middle of the one that was interrupted.
        """
        self._passes.set_epoch(whole_number("epoch", epoch, least=0) or 0)

    def state_dict(self) -> dict[str, Any]:
        """A few numbers, equal on every rank: the place after the batch handed out last.

        Valid after any step, also where a loop was left early. What was read ahead does not count.
        """
        return self._shared.state(self._passes.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on after ``state``, with any ranks that divide its lanes.

        Raises:
            StateError: It is of another data set, seed, order or global batch size.
        """
        self._passes.refuse_while_iterating("load_state_dict")
        self._passes.resume(self._shared.resume(state))

    def __iter__(self) -> BatchIterator:
        """Begins the next epoch, or goes on from a state; an iterator of before raises then.

        Raises:
            RuntimeError: The loader is closed. So does an iterator that was made before.
        """
        return self._passes.iterate(self._open_queue, self.steps_per_epoch)

    def _open_queue(self, start: Position, end_epoch: int | None) -> BatchQueue:
        shared = self._shared
        shared.tell(start)
        return self._pipeline.queue(shared.order, shared.rank_lanes, shared.tail, start, end_epoch)

    def close(self) -> None:
        """Ends an iteration under way, the threads, and lets the memory go."""
        self._passes.close()
        self._pipeline.close()

    def __enter__(self) -> ArrowLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _memory_of(device: torch.device | str | None) -> ArrayMemory | PinnedRing:
    """The memory of batches. Arrays need no torch."""
    if isinstance(device, str) and device == "numpy":
        return ArrayMemory()
    from sparkdl_runner.data.batches.device import memory_for

    return memory_for(device)
