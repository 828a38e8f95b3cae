"""Opens a loader of either engine from the arguments of ``make_torch_dataloader``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl_runner.data.batches.shard_group import shard_of
from sparkdl_runner.data.consumers.engine_choice import (
    TUNING,
    require_cache_type,
    wanted_columns,
    wanted_tail,
    wants_shuffle,
)
from sparkdl_runner.data.dataset.converted import Converted
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import DatasetError

DEFAULT_BATCH_SIZE = 32
PETASTORM_WORKERS_COUNT = 4


@dataclass(kw_only=True)
class TorchLoaderContext:
    """Opens a loader on entering a ``with`` block and closes it on leaving."""

    engine: str
    arguments: dict[str, Any]
    shuffling_queue_capacity: int
    open_dataset: Callable[[], Dataset]
    url: str
    converted: Converted | None
    unischema: bool

    def __post_init__(self) -> None:
        self._loader: Any = None
        if self.engine == "petastorm" and "cache_type" in self.arguments:
            require_cache_type(self.arguments["cache_type"])

    def __enter__(self) -> Any:
        if self._loader is not None:
            raise RuntimeError("this loader is open already; make another one.")
        dataset = self.open_dataset()
        arguments = dict(self.arguments)
        shuffle = wants_shuffle(arguments, self.shuffling_queue_capacity)
        columns = wanted_columns(arguments, dataset.manifest.schema.names)
        for name in ("columns", "schema_fields", "shuffle"):
            arguments.pop(name, None)
        if self.engine == "petastorm":
            self._loader = self._open_petastorm(dataset, arguments, columns, shuffle)
        else:
            self._loader = self._open_arrow(dataset, arguments, columns, shuffle)
        return self._loader

    def __iter__(self) -> Any:
        raise TypeError(
            "make_torch_dataloader() returns a context manager, which has no batches itself: write "
            "with converter.make_torch_dataloader(...) as loader, and then for batch in loader."
        )

    def __exit__(self, *error: object) -> None:
        self._loader.close()
        self._loader = None

    def _open_arrow(
        self, dataset: Dataset, arguments: dict[str, Any], columns: list[str] | None, shuffle: bool
    ) -> Any:
        from sparkdl_runner.data.batches.loader import ArrowLoader

        if arguments["batch_size"] is None and "global_batch_size" not in arguments:
            arguments["batch_size"] = DEFAULT_BATCH_SIZE
        if "tail" not in arguments:
            arguments["tail"] = wanted_tail(arguments, dataset.manifest.rows)
        for name in TUNING | {"shuffle_row_groups"}:
            arguments.pop(name, None)
        return ArrowLoader(
            *dataset,
            **arguments,
            columns=columns,
            shuffle=shuffle,
            converted=self.converted,
        )

    def _open_petastorm(
        self, dataset: Dataset, arguments: dict[str, Any], columns: list[str] | None, shuffle: bool
    ) -> Any:
        from sparkdl_runner.data.consumers.petastorm.arguments import require_one_order
        from sparkdl_runner.data.consumers.petastorm.loader import PetastormLoader

        if dataset.manifest.view is not None:
            raise DatasetError(
                f"engine='petastorm' reads whole files, and {dataset.manifest.view.title} is not "
                "all that its files hold: leave out what chose that engine, or convert a DataFrame."
            )
        shard_by = arguments.pop("shard_by", None)
        shard = shard_of(
            shard_by, arguments.pop("cur_shard", None), arguments.pop("shard_count", None)
        )
        if shard_by is not None:
            require_one_order(arguments, self.shuffling_queue_capacity)
        own = {
            name: arguments.pop(name, None)
            for name in ("num_epochs", "steps_per_epoch", "data_loader_fn", "seed")
        }
        batch_size = arguments.pop("batch_size")
        arguments["workers_count"] = arguments["workers_count"] or PETASTORM_WORKERS_COUNT
        if columns is not None:
            arguments["schema_fields"] = columns
        if not shuffle:
            arguments["shuffle_row_groups"] = False
        return PetastormLoader(
            VerifiedFiles(dataset, self.converted),
            self.url,
            batch_size=DEFAULT_BATCH_SIZE if batch_size is None else batch_size,
            cur_shard=shard[0],
            shard_count=shard[1],
            unischema=self.unischema,
            shuffling_queue_capacity=self.shuffling_queue_capacity,
            reader_arguments=arguments,
            **own,
        )
