"""A store for Horovod's Spark estimators that works with Arrow 14 and later."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any


def create_store(prefix_path: str, *args: Any, **kwargs: Any) -> Any:
    """Makes what ``horovod.spark.common.store.Store.create`` does, for Arrow 14 and later.

    Horovod 0.28.1 looks at the Parquet files that it has written by an old interface of Arrow's,
    which Arrow 14 gives on demand only and Arrow 15 not at all: ``fit`` ends in ``AttributeError:
    'pyarrow.lib.Schema' object has no attribute 'to_arrow_schema'``. This store takes today's.

    Args:
        prefix_path: The folder or URL below which the estimator keeps its data, checkpoints and
            logs. Horovod unpickles what it finds there: no other user should be able to write.
        *args: What ``Store.create`` takes besides.
        **kwargs: The same.

    Returns:
        A ``horovod.spark.common.store.Store``.
    """
    from horovod.spark.common.store import Store

    store = Store.create(prefix_path, *args, **kwargs)
    store.get_parquet_dataset = partial(parquet_dataset, store)
    return store


def parquet_dataset(store: Any, path: str) -> SimpleNamespace:
    """The parts of an old ``ParquetDataset`` that Horovod reads: schema and footers."""
    import pyarrow.parquet as pq

    place = store.get_localized_path(path)
    if hasattr(store.fs, "_strip_protocol"):  # Of fsspec, whose paths may lack the URL's account.
        place = store.fs._strip_protocol(place)
    dataset = pq.ParquetDataset(place, filesystem=store.fs)
    return SimpleNamespace(
        schema=SimpleNamespace(to_arrow_schema=lambda: dataset.schema),
        pieces=[
            SimpleNamespace(get_metadata=partial(getattr, fragment, "metadata"))
            for fragment in dataset.fragments
        ],
    )
