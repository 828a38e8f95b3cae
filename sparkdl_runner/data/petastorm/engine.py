"""petastorm, where it can run: its converter writes, and its readers feed a loader of equal steps.

petastorm is imported only by the functions that use it.
"""

from __future__ import annotations

import atexit
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyarrow import fs

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.same_files import SameFiles
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.order.plan import NO_LENGTH
from sparkdl_runner.data.petastorm.arguments import without_foreign_pickles
from sparkdl_runner.filesystem import StorageOptions, local_path, open_filesystem, redact
from sparkdl_runner.foreign_file import open_input
from sparkdl_runner.hooks import loader_plans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkdl_runner.data.write_settings import WriteSettings

UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
"""Where petastorm keeps a pickled schema in the metadata of ``_common_metadata``."""

_LIMITS = {"pyarrow": 15, "numpy": 2}
"""The first major versions that petastorm 0.12 cannot run with."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps pyarrow from warning of the interfaces that petastorm uses; nobody can change that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def obstacle() -> str | None:
    """Returns why petastorm cannot run in this process, in one sentence, or ``None`` if it can."""
    for package, limit in _LIMITS.items():
        version = metadata.version(package)
        if int(version.partition(".")[0]) >= limit:
            return (
                f"petastorm needs {package} below {limit}, and this is {package} {version}: use "
                f"engine='arrow', or an environment with an older {package}."
            )
    try:
        with _quiet():
            import petastorm  # noqa: F401
    except ImportError as error:
        return (
            f"petastorm cannot be imported ({error}): use engine='arrow', or run "
            "pip install 'sparkdl-runner[petastorm]'."
        )
    return None


def require_petastorm() -> None:
    """Raises an ImportError with :func:`obstacle`'s sentence if petastorm cannot run here."""
    sentence = obstacle()
    if sentence is not None:
        raise ImportError(sentence)


def can_convert(df: DataFrame, parent_url: str) -> bool:
    """Whether petastorm's converter can write this DataFrame to this place.

    It needs Spark's Java objects, which Spark Connect does not offer, and a storage that it can
    delete from at exit, which with today's fsspec is the local one and HDFS.
    """
    place = local_path(parent_url) is not None or parent_url.startswith("hdfs:")
    return hasattr(df, "_jdf") and place and obstacle() is None


def materialize(df: DataFrame, parent_url: str, settings: WriteSettings) -> str:
    """Has petastorm's converter write ``df`` into a new directory below ``parent_url``.

    Returns:
        The directory's URL.
    """
    with _quiet():
        from petastorm.spark import spark_dataset_converter

    # Its public function would count the rows in a second job and read the schema in a third.
    url: str = spark_dataset_converter._materialize_df(
        df,
        parent_cache_dir_url=parent_url,
        parquet_row_group_size_bytes=settings.row_group_size_bytes,
        compression_codec=settings.compression_codec,
        # Precision and vectors are seen to already, at any depth; petastorm knows one.
        dtype=None,
    )
    # It deletes at exit what we delete as well, and what it calls for that warns of itself.
    atexit.register(warnings.filterwarnings, "ignore", category=FutureWarning, module="petastorm")
    return url


def has_unischema(filesystem: fs.FileSystem, directory: str) -> bool:
    """Whether the directory was written by petastorm's own codecs, with a pickled schema."""
    path = f"{directory.rstrip('/')}/_common_metadata"
    if filesystem.get_file_info(path).type != fs.FileType.File:
        return False
    with open_input(filesystem, path) as stream:
        found = pq.read_schema(stream).metadata or {}
    return UNISCHEMA_KEY in found


class PetastormLoader:
    """Batches from petastorm's reader, the same number on every rank, in a new order each epoch.

    petastorm gives row group ``i`` to shard ``i % shard_count``. An epoch has as many steps as
    the smallest shard has full batches, and one where it has none; with one shard it has all rows.
    The last batch of a shard is smaller where its rows do not fill it. Without an end of epochs
    every batch is full: a shard goes round. Where rows are filtered while they are read, a shard
    that runs dry begins again, until it has made its steps.
    """

    def __init__(
        self,
        manifest: Manifest,
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
        check_files: Callable[[], None] = lambda: None,
        same: SameFiles | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        """Checks the arguments; readers are opened by iterating.

        Args:
            manifest: What the data set holds.
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
            check_files: Called before each reader is opened; raises a DatasetError if the files
                are not those that were converted.
            same: Holds each file that petastorm opens against what was converted; by default
                against the manifest alone.
            storage_options: Credentials and such for this process.

        Raises:
            ImportError: petastorm cannot run here.
            ValueError: The number of steps cannot be known, or some shard has no row.
        """
        require_petastorm()
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
        self._check_files = check_files
        self._same = same or SameFiles(manifest)
        self._made_at = loader_plans.place_of_caller()
        self._fingerprint = manifest.fingerprint
        self._manifest = manifest
        self._storage_options = storage_options
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
        self._steps = steps_per_epoch
        if steps_per_epoch is None and not (filtering and shard_count == 1):
            if filtering:
                raise ValueError(
                    f"With {sorted(filtering)[0]} and {shard_count} shards, nobody knows how many "
                    "rows each rank will get: give steps_per_epoch, so that all make the same."
                )
            self._steps = self._count_steps(manifest)
        # One shard of a data set is read to its end; equal steps matter from two on.
        self._wraps = self._steps is not None and (
            shard_count > 1 or steps_per_epoch is not None or num_epochs is None
        )
        self._rounds = self._count_rounds(manifest)

    def _count_steps(self, manifest: Manifest) -> int:
        _, count = self._shard
        rows = manifest.row_groups.rows
        if count == 1:
            return math.ceil(manifest.rows / self._batch_size)
        least = min(int(rows[shard::count].sum()) for shard in range(count))
        if least == 0:
            raise ValueError(
                f"petastorm deals out whole row groups, and {len(rows)} row groups of {count} "
                "shards leave some rank without a batch. Write more of them, by "
                f"df.repartition({count}) before converting, or leave out what only petastorm's "
                "engine can do: the arrow engine deals out rows."
            )
        return max(1, least // self._batch_size)

    def _count_rounds(self, manifest: Manifest) -> int:
        """How often a reader must go through its shard so that each batch of an epoch is full."""
        shard, count = self._shard
        rows = int(manifest.row_groups.rows[shard::count].sum())
        if self._num_epochs is not None or not self._steps or not rows or self._filtering:
            return 1
        return math.ceil(self._steps * self._batch_size / rows)

    def __len__(self) -> int:
        """Steps of one epoch.

        Raises:
            TypeError: There is no end of epochs, or nobody knows how many rows pass a filter.
        """
        if self._num_epochs is None:
            raise TypeError(NO_LENGTH)
        return self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch.

        Raises:
            TypeError: Nobody knows how many rows pass a filter.
        """
        if self._steps is None:
            raise TypeError("How many rows pass is known only after reading: give steps_per_epoch.")
        return self._steps

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next iteration begins with; orders differ between epochs."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        if self._shard[1] > 1 and self._fingerprint:
            # Which rows a rank reads does not follow from a seed.
            plan = {
                "batch_size": self._batch_size,
                "num_epochs": None if self._num_epochs is None else int(self._num_epochs),
                "steps_per_epoch": None if self._steps is None else int(self._steps),
            }
            order = {**plan, "fingerprint": self._fingerprint}
            loader_plans.tell(self._url, self._made_at, order=order, arguments=plan)
            self._fingerprint = ""  # Once is enough.
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
        with _quiet():
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
            self._stop(reader)  # Its own: who counts batches begins again before the end.

    def _open_reader(self, epoch: int, turn: int) -> Any:
        with _quiet():
            from petastorm import make_batch_reader, make_reader

        self._check_files()
        arguments = dict(self._reader_arguments, num_epochs=self._rounds)
        if self._shard[1] > 1:
            arguments["cur_shard"], arguments["shard_count"] = self._shard
        if self._seed is not None:
            # petastorm takes 0 for "no seed", and repeats one order for as long as a reader lives.
            arguments["seed"] = 1 + (self._seed * 1_000_003 + epoch * 1009 + turn) % (2**31 - 2)
        with _quiet():
            # It also takes any seed for its deprecated shard_seed, and warns of that.
            if self._unischema:
                return make_reader(self._url, **arguments)
            from sparkdl_runner.data.petastorm.listed_files import ListedFiles

            # A file that the manifest does not list is never read, and neither is a
            # _common_metadata, whose schema petastorm would unpickle.
            opened = open_filesystem(self._url, self._storage_options)
            files = ListedFiles(self._manifest, *opened, self._same)
            return make_batch_reader(files.urls, filesystem=files, **arguments)

    def close(self) -> None:
        """Stops petastorm's threads."""
        for reader in tuple(self._readers):
            self._stop(reader)

    def _stop(self, reader: Any) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            reader.stop()
            reader.join()
