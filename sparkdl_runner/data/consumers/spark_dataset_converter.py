"""``SparkDatasetConverter``: names a conversion, is sent to the ranks, and opens loaders there."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from sparkdl_runner.base.filesystem import StorageOptions, join_url, open_filesystem, redact
from sparkdl_runner.data.batches.mixing import Mixing, mixing_of
from sparkdl_runner.data.consumers.engine_choice import choose_engine
from sparkdl_runner.data.consumers.loader_context import TorchLoaderContext
from sparkdl_runner.data.consumers.petastorm.unischema import Unischema
from sparkdl_runner.data.consumers.tf_dataset import TFDatasetContext, check_arguments
from sparkdl_runner.data.dataset.converted import Converted, open_conversion
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.place import PARENT_CACHE_DIR_URL_CONF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkdl_runner.data.consumers.iterable_dataset import BatchDataset
    from sparkdl_runner.data.consumers.map_dataset import RowDataset

_log = logging.getLogger(__name__)


class SparkDatasetConverter:
    """A converted DataFrame: where it is, and how to read it.

    It holds no data and no credentials, so a training function can close over it.

    Attributes:
        cache_dir_url: The directory of the Parquet files.
        file_urls: The files; in another process they are looked up when asked for.
        dataset_size: Rows in all of them, which is also ``len()`` of the converter.
    """

    PARENT_CACHE_DIR_URL_CONF: ClassVar[str] = PARENT_CACHE_DIR_URL_CONF

    def __init__(
        self,
        cache_dir_url: str,
        file_urls: list[str],
        dataset_size: int,
        *,
        manifest: Manifest | None = None,
        converted: Converted | None = None,
        unischema: Unischema | None = None,
        delete: Callable[[], None] | None = None,
    ) -> None:
        """Usually called by :func:`~sparkdl_runner.data.make_spark_converter`.

        Args:
            cache_dir_url: The directory of the Parquet files.
            file_urls: The files.
            dataset_size: Rows in all of them.
            manifest: What the directory holds, if it has no manifest of its own.
            converted: What the converter remembers of the files.
            unischema: The schema of petastorm's codecs, if they encoded the files.
            delete: Deletes the files, if this process may.
        """
        self.cache_dir_url = cache_dir_url
        self._file_urls: list[str] | None = file_urls
        self.dataset_size = dataset_size
        self._manifest = manifest
        self._converted = converted
        self._unischema = unischema
        # Whether the columns are encoded by a schema that cannot be read without running it.
        self._is_opaque = unischema is not None and unischema.problem is not None
        self._delete = delete
        self.dataframe: DataFrame | None = None
        """The converted DataFrame, on the driver that converted it."""

    @property
    def file_urls(self) -> list[str]:
        if self._file_urls is None:
            files = self.open().manifest.files
            self._file_urls = [join_url(self.cache_dir_url, file.path) for file in files]
        return self._file_urls

    def __len__(self) -> int:
        return self.dataset_size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redact(self.cache_dir_url)!r}, {self.dataset_size:,} rows)"

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process reads the files and must not delete them. Names of a hundred
        # thousand files would be ten megabytes for every rank, which reads them in the manifest.
        known = self._converted is not None
        return {
            **self.__dict__,
            "_delete": None,
            "dataframe": None,
            "_file_urls": None if known else self._file_urls,
        }

    def __enter__(self) -> SparkDatasetConverter:
        return self

    def __exit__(self, *error: object) -> None:
        self.delete()

    def delete(self) -> None:
        """Deletes the files, once each of this process's converters that share them was deleted.

        A converter that is no longer referred to does not count. Only what a conversion made is
        deleted, and only by the process that made it: on a directory that was given by its path,
        and on a copy in another process, this does nothing.
        """
        if self._delete is None:
            _log.info("%r was not made by this process and is left as it is.", self)
            return
        self._delete()

    def open(self, storage_options: StorageOptions | None = None) -> Dataset:
        """Opens the directory from this process.

        Returns:
            The manifest, the filesystem, and the directory's path in it, as a named tuple.

        Raises:
            NoManifestError: The files were deleted.
            DatasetError: The manifest is damaged, or of another conversion that took its place.
        """
        if self._manifest is not None:
            return Dataset(self._manifest, *open_filesystem(self.cache_dir_url, storage_options))
        return open_conversion(
            self.cache_dir_url, storage_options, self._converted, self._file_urls
        )

    def mixing(
        self, batch_size: int, num_ranks: int, *, window_row_groups: int | None = None
    ) -> Mixing:
        """How well batches will mix the rows: ``print()`` it before one is read.

        Args:
            batch_size: Rows of one rank in a step.
            num_ranks: Ranks that share the rows.
            window_row_groups: As the loader will get it.
        """
        return mixing_of(self.open(), batch_size, num_ranks, window_row_groups)

    def make_torch_dataloader(
        self,
        batch_size: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        *,
        engine: str | None = None,
        storage_options: StorageOptions | None = None,
        **reader_kwargs: Any,
    ) -> TorchLoaderContext:
        """Opens a loader over this rank's shard, in a ``with`` block.

        Args:
            batch_size: Rows in a batch of one rank; 32 unless ``global_batch_size`` is given.
            num_epochs: Passes over the data in one iteration; ``None`` for no end.
            workers_count: Threads that read and decode.
            shuffling_queue_capacity: As in petastorm. The arrow engine shuffles without a queue,
                and does so unless ``shuffle=False``, or ``shuffle_row_groups=False`` and no queue.
            data_loader_fn: As in petastorm, whose engine it chooses.
            engine: ``"arrow"``, ``"petastorm"``, or ``None`` to choose by the other arguments:
                petastorm for what only petastorm can do, arrow for all else.
            storage_options: Credentials and such for this process, as for
                :func:`~sparkdl_runner.base.filesystem.open_filesystem`.
            **reader_kwargs: Arguments of ``ArrowLoader``, or of petastorm's reader; for the
                petastorm engine also ``steps_per_epoch`` and ``trust_unischema``. Without
                ``tail``, ranks drop rows that fill no global batch. A data set that is not sharded,
                or smaller than a global batch, is given whole to every rank; endless loaders
                then begin it again.

        Returns:
            A context manager for the loader, which is closed when the block ends.

        Raises:
            TypeError: An argument is unknown, or belongs to the other engine.
            ValueError: A value is out of range.
            DatasetError: The data set holds a pickled schema, which the caller did not trust.
            ImportError: petastorm's engine is needed, and petastorm cannot run here.
        """
        reader_kwargs["data_loader_fn"] = data_loader_fn
        given = {name: value for name, value in reader_kwargs.items() if value is not None}
        chosen = choose_engine(engine, given, unischema=self._is_opaque)
        if chosen == "petastorm":
            from sparkdl_runner.data.consumers.petastorm.engine import (
                refuse_untrusted,
                require_petastorm,
            )

            require_petastorm()
            if not given.pop("trust_unischema", False) and self._unischema is not None:
                refuse_untrusted(self.cache_dir_url, self._unischema.problem)
        given.update(batch_size=batch_size, num_epochs=num_epochs, workers_count=workers_count)
        return TorchLoaderContext(
            engine=chosen,
            arguments=given,
            shuffling_queue_capacity=shuffling_queue_capacity,
            open_dataset=lambda: self.open(storage_options),
            url=self.cache_dir_url,
            converted=self._converted,
            unischema=self._unischema is not None,
        )

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        *,
        storage_options: StorageOptions | None = None,
        **reader_kwargs: Any,
    ) -> TFDatasetContext:
        """Opens a ``tf.data.Dataset`` over this rank's shard, in a ``with`` block.

        Its elements are named tuples of the columns; see ``TFDatasetContext``.

        Args:
            batch_size: Rows in a batch of one rank.
            prefetch: Batches that TensorFlow reads ahead; by default as many as it finds good.
            num_epochs: Passes over the data in one iteration; ``None`` for no end.
            workers_count: Threads that read and decode.
            shuffling_queue_capacity: As in petastorm.
            storage_options: Credentials and such for this process.
            **reader_kwargs: Arguments of ``ArrowLoader``, but for ``transform`` and ``device``.

        Raises:
            TypeError: An argument is unknown, or only ``make_torch_dataloader`` takes it.
            DatasetError: Only petastorm can read the schema of its codecs.
        """
        given = {name: value for name, value in reader_kwargs.items() if value is not None}
        check_arguments(given, unischema=self._is_opaque)
        make_loader = functools.partial(
            self.make_torch_dataloader,
            *(batch_size, num_epochs, workers_count, shuffling_queue_capacity),
            engine="arrow",
            device="numpy",
            storage_options=storage_options,
            **given,
        )
        return TFDatasetContext(make_loader, num_epochs, prefetch)

    def make_iterable_dataset(
        self,
        batch_size: int | None = None,
        num_epochs: int | None = 1,
        *,
        num_workers: int = 0,
        storage_options: StorageOptions | None = None,
        **arguments: Any,
    ) -> BatchDataset:
        """Makes a ``torch.utils.data.IterableDataset`` of batches of this rank.

        It is for a ``DataLoader`` or torchdata's ``StatefulDataLoader`` with ``batch_size=None``.

        Args:
            batch_size: Rows in a batch of one rank.
            num_epochs: Passes over the data in one iteration; ``None`` for no end.
            num_workers: Worker processes of that ``DataLoader``; give it the same number.
            storage_options: Credentials and such for this process.
            **arguments: Of ``ArrowLoader``; ``memory_budget_bytes`` is of each worker.

        Raises:
            TypeError: An argument is unknown, or only petastorm's engine takes it.
        """
        from sparkdl_runner.data.consumers.iterable_dataset import BatchDataset

        make_loader = functools.partial(
            self.make_torch_dataloader, engine="arrow", storage_options=storage_options
        )
        arguments.update(batch_size=batch_size, num_epochs=num_epochs)
        return BatchDataset(make_loader, len(self), arguments, num_workers)

    def make_map_dataset(
        self,
        *,
        memory_budget_bytes: int | None = None,
        storage_options: StorageOptions | None = None,
        **options: Any,
    ) -> RowDataset:
        """Makes a map-style ``torch.utils.data.Dataset`` of rows, for torch's samplers.

        Args:
            memory_budget_bytes: What decoded row groups may take, in each process; 256 MiB by
                default. One is kept in any case.
            storage_options: Credentials and such for this process.
            **options: How columns are read, as for ``ArrowLoader``: ``columns``, ``nulls``,
                ``fill_value``, ``pad``, ``pad_value``, ``ragged``, ``images``, ``decimals``.

        Raises:
            TypeError: An argument is unknown.
        """
        from sparkdl_runner.data.consumers.map_dataset import RowDataset

        open_dataset = functools.partial(self.open, storage_options)
        return RowDataset(open_dataset, self._converted, len(self), memory_budget_bytes, options)
