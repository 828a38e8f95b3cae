"""``SparkDatasetConverter``: names a conversion, travels to the ranks, and opens loaders there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from pyarrow import fs

from sparkdl_runner.data.dataset.describe import check_files
from sparkdl_runner.data.dataset.leftovers import delete_directory
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.place import PARENT_CACHE_DIR_URL_CONF
from sparkdl_runner.data.dataset.same_files import Converted, SameFiles
from sparkdl_runner.data.engine_choice import (
    TUNING,
    choose_engine,
    wanted_columns,
    wanted_tail,
    wants_shuffle,
)
from sparkdl_runner.data.errors import DatasetError, NoManifestError
from sparkdl_runner.data.order.shard import resolve_shard
from sparkdl_runner.filesystem import StorageOptions, join_url, open_filesystem, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_BATCH_SIZE = 32
PETASTORM_WORKERS_COUNT = 4

_log = logging.getLogger(__name__)


class SparkDatasetConverter:
    """A converted DataFrame: where it is, and how to read it.

    It holds names only, no data and no credentials, so a training function can close over it.

    Attributes:
        cache_dir_url: The directory of the Parquet files.
        file_urls: The files.
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
        unischema: bool = False,
        delete: Callable[[], None] | None = None,
    ) -> None:
        """Usually called by :func:`~sparkdl_runner.data.make_spark_converter`.

        Args:
            cache_dir_url: The directory of the Parquet files.
            file_urls: The files.
            dataset_size: Rows in all of them.
            manifest: What the directory holds, if it has no manifest of its own.
            converted: What was there when it was converted, to know it again.
            unischema: Whether petastorm's codecs encoded the files.
            delete: Deletes the files, if this process may.
        """
        self.cache_dir_url = cache_dir_url
        self.file_urls = file_urls
        self.dataset_size = dataset_size
        self._manifest = manifest
        self._converted = converted
        self._unischema = unischema
        self._delete = delete
        self.dataframe: DataFrame | None = None
        """What was converted, on the driver that converted it."""

    def __len__(self) -> int:
        return self.dataset_size

    def __repr__(self) -> str:
        url = redact(self.cache_dir_url)
        return f"{type(self).__name__}({url!r}, {self.dataset_size:,} rows)"

    def __getstate__(self) -> dict[str, Any]:
        # Who receives a copy reads the files, and does not delete them.
        return {**self.__dict__, "_delete": None, "dataframe": None}

    def __enter__(self) -> SparkDatasetConverter:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        exc_traceback: TracebackType | None,
    ) -> None:
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

    def open(
        self, storage_options: StorageOptions | None = None
    ) -> tuple[Manifest, fs.FileSystem, str]:
        """Opens the directory from this process.

        Returns:
            The manifest, the filesystem, and the directory's path in it.

        Raises:
            NoManifestError: The files were deleted.
            DatasetError: The manifest is damaged, or of another conversion that took its place.
        """
        filesystem, directory = open_filesystem(self.cache_dir_url, storage_options)
        if self._manifest is not None:
            return self._manifest, filesystem, directory
        try:
            manifest = Manifest.read(filesystem, directory)
            self._check_same(manifest)
            return manifest, filesystem, directory
        except NoManifestError:
            if filesystem.get_file_info(directory).type != fs.FileType.NotFound:
                raise
        raise NoManifestError(
            f"The conversion {redact(self.cache_dir_url)} is gone: it was deleted, the process "
            "that made it has ended, or this machine does not see that directory."
        )

    def _check_same(self, manifest: Manifest) -> None:
        """Raises a DatasetError if it is another one by now: all ranks must read the same."""
        if self._converted is not None:
            same = manifest.digest == self._converted.manifest_digest
        else:
            there = [join_url(self.cache_dir_url, file.path) for file in manifest.files]
            same = not self.file_urls or there == self.file_urls
        if not same:
            url = redact(self.cache_dir_url)
            raise DatasetError(
                f"The conversion {url} was overwritten by another one after this converter was "
                f"made: make it again, by make_spark_converter({url!r}) on the driver, and start "
                "the training again."
            )

    def check_files(self, opened: tuple[Manifest, fs.FileSystem, str]) -> None:
        """Checks that the files are those that were converted.

        Args:
            opened: What ``open`` returned.

        Raises:
            DatasetError: One is gone, or is another one.
        """
        manifest, filesystem, directory = opened
        check_files(filesystem, directory, manifest, SameFiles(manifest, self._converted))

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
                :func:`~sparkdl_runner.filesystem.open_filesystem`.
            **reader_kwargs: Arguments of ``ArrowLoader``, or of petastorm's reader; for the
                petastorm engine also ``steps_per_epoch`` and ``trust_unischema``. Without
                ``tail``, ranks drop rows that fill no global batch, and data that are not sharded,
                or fill not one, are given whole, without an end round and round.

        Returns:
            A context manager for the loader, which is closed when the block ends.

        Raises:
            TypeError: An argument is unknown, or belongs to the other engine.
            ValueError: A value is out of range.
            DatasetError: The data set holds a pickled schema, and nobody said that it is trusted.
            ImportError: petastorm's engine is needed, and petastorm cannot run here.
        """
        given = {name: value for name, value in reader_kwargs.items() if value is not None}
        names = set(given) | ({"data_loader_fn"} if data_loader_fn is not None else set())
        chosen = choose_engine(engine, names, unischema=self._unischema)
        if chosen == "petastorm":
            from sparkdl_runner.data.petastorm.engine import require_petastorm

            require_petastorm()
            self._check_trust(given.pop("trust_unischema", False))
            given["data_loader_fn"] = data_loader_fn
        given["batch_size"] = batch_size
        return TorchLoaderContext(
            self,
            chosen,
            {
                **given,
                "num_epochs": num_epochs,
                "workers_count": workers_count,
            },
            shuffling_queue_capacity,
            storage_options,
        )

    def _check_trust(self, trusted: bool) -> None:
        if self._unischema and not trusted:
            raise DatasetError(
                f"{redact(self.cache_dir_url)} holds a pickled petastorm schema, and reading it "
                "runs whatever its writer put there: pass trust_unischema=True if you trust them, "
                "or write the data again from a DataFrame."
            )


class TorchLoaderContext:
    """Opens a loader on entering a ``with`` block and closes it on leaving."""

    def __init__(
        self,
        converter: SparkDatasetConverter,
        engine: str,
        arguments: dict[str, Any],
        shuffling_queue_capacity: int,
        storage_options: StorageOptions | None,
    ) -> None:
        self._converter = converter
        self._engine = engine
        self._arguments = arguments
        self._queue_capacity = shuffling_queue_capacity
        self._storage_options = storage_options
        self._loader: Any = None

    def __enter__(self) -> Any:
        if self._loader is not None:
            raise RuntimeError("this loader is open already; make another one.")
        opened = self._converter.open(self._storage_options)
        arguments = dict(self._arguments)
        shuffle = wants_shuffle(arguments, self._queue_capacity)
        columns = wanted_columns(arguments, opened[0].schema.names)
        if self._engine == "petastorm":
            self._loader = self._open_petastorm(opened, arguments, columns, shuffle)
        else:
            if arguments["batch_size"] is None and "global_batch_size" not in arguments:
                arguments["batch_size"] = DEFAULT_BATCH_SIZE
            if "tail" not in arguments:
                arguments["tail"] = wanted_tail(arguments, len(self._converter))
            arguments["converted"] = self._converter._converted
            self._loader = _open_arrow(opened, arguments, columns, shuffle)
        return self._loader

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        exc_traceback: TracebackType | None,
    ) -> None:
        self._loader.close()
        self._loader = None

    def _open_petastorm(
        self,
        opened: tuple[Manifest, fs.FileSystem, str],
        arguments: dict[str, Any],
        columns: list[str] | None,
        shuffle: bool,
    ) -> Any:
        from sparkdl_runner.data.petastorm.engine import PetastormLoader

        shard = resolve_shard(arguments.pop("cur_shard", None), arguments.pop("shard_count", None))
        for name in ("columns", "schema_fields", "shuffle"):
            arguments.pop(name, None)
        own = {
            name: arguments.pop(name, None)
            for name in ("steps_per_epoch", "data_loader_fn", "seed")
        }
        batch_size = arguments.pop("batch_size")
        reader = {name: value for name, value in arguments.items() if name != "num_epochs"}
        reader["workers_count"] = reader["workers_count"] or PETASTORM_WORKERS_COUNT
        if columns is not None:
            reader["schema_fields"] = columns
        if not shuffle:
            reader["shuffle_row_groups"] = False
        return PetastormLoader(
            opened[0],
            self._converter.cache_dir_url,
            check_files=lambda: self._converter.check_files(opened),
            same=SameFiles(opened[0], self._converter._converted),
            batch_size=DEFAULT_BATCH_SIZE if batch_size is None else batch_size,
            num_epochs=arguments["num_epochs"],
            cur_shard=shard[0],
            shard_count=shard[1],
            unischema=self._converter._unischema,
            shuffling_queue_capacity=self._queue_capacity,
            reader_arguments=reader,
            storage_options=self._storage_options,
            **own,
        )


def _open_arrow(
    opened: tuple[Manifest, fs.FileSystem, str],
    arguments: dict[str, Any],
    columns: list[str] | None,
    shuffle: bool,
) -> Any:
    from sparkdl_runner.data.loader import ArrowLoader

    for name in TUNING | {"schema_fields", "shuffle_row_groups", "columns"}:
        arguments.pop(name, None)
    if columns is not None:
        arguments["columns"] = columns
    return ArrowLoader(*opened, **{**arguments, "shuffle": shuffle})


def deleter(url: str, storage_options: StorageOptions | None) -> Callable[[], None]:
    """Returns what deletes a directory if, and only if, this very process calls it."""
    pid = os.getpid()

    def delete() -> None:
        if os.getpid() == pid:
            delete_directory(url, storage_options)

    return delete
