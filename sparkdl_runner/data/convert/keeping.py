"""``keep_hours``: a conversion of a DataFrame is kept, and equal ones of other sessions find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparkdl_runner.data.convert.described import converter_of
from sparkdl_runner.data.convert.plan_key import key_of
from sparkdl_runner.data.convert.sources import Request
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.place import is_one_host
from sparkdl_runner.data.keep import kept
from sparkdl_runner.data.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.filesystem import StorageOptions, redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkdl_runner.data.convert.plan import WriteSettings

TRUSTED_USERS_CONF = "sparkdl_runner.converter.trustedUsers"
"""Names of other users, with commas between, whose kept conversions are read; ``*`` for all."""


def check_keep_hours(keep_hours: float | None) -> None:
    """Raises a ValueError for a time that is too short to renew a lease in."""
    if keep_hours is not None and not keep_hours >= 1:
        raise ValueError(f"keep_hours must be 1 or more, not {keep_hours!r}.")


def cache_of(spark: SparkSession, url: str, storage_options: StorageOptions | None) -> kept.Place:
    """The cache directory of a session, for conversions that are kept."""
    names = (spark.conf.get(TRUSTED_USERS_CONF, "") or "").split(",")
    trusted = {name.strip() for name in names if name.strip()}
    return kept.Place(
        url=url,
        storage_options=storage_options,
        private=is_one_host(spark) and not trusted,
        trusted_users=trusted,
    )


def find_or_make(
    place: kept.Place,
    request: Request,
    settings: WriteSettings,
    keep_hours: float,
    convert: Callable[[str, str], tuple[str, Dataset]],
) -> SparkDatasetConverter:
    """A kept conversion of an equal DataFrame, or a new one; see ``kept.find_or_make``.

    Raises:
        ValueError: Another session could not tell whether a DataFrame is equal.
    """
    key = key_of(request, settings)
    found = kept.find_or_make(place, key, keep_hours * 3600, _in_words(request), convert)
    return converter_of(found.url, found.dataset, checked=found.checked, delete=found.lease.let_go)


def _in_words(request: Request) -> str:
    folders = sorted({file.path.rpartition("/")[0] for file in request.sources.files})
    shown = ", ".join(redact(folder) for folder in folders[:3])
    more = f" and {len(folders) - 3:,} more folders" if len(folders) > 3 else ""
    return f"{shown or 'a plan without files'}{more}"
