"""Whether petastorm can run here, and its converter. It is imported only where it is used."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

from sparkdl_runner.base.filesystem import local_path, redact
from sparkdl_runner.data.errors import DatasetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LIMITS = {"pyarrow": 15, "numpy": 2}
"""The first major versions that petastorm 0.12 cannot run with."""


@contextmanager
def quiet() -> Iterator[None]:
    """Hides pyarrow's warnings about the old interfaces that petastorm uses."""
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
        with quiet():
            import petastorm  # noqa: F401
    except ImportError as error:
        return (
            f"petastorm cannot be imported ({error}): use engine='arrow', or run "
            "pip install 'sparkdl-runner[petastorm]'."
        )
    return None


def refuse_untrusted(url: str, problem: str | None) -> None:
    """Raises a DatasetError: the caller did not say that the pickled schema is trusted.

    ``problem`` is why the data set cannot be read without running it, if it cannot.
    """
    otherwise = "use engine='arrow', which does not run it"
    if problem is not None:
        otherwise = f"write the data again from a DataFrame: without running it, {problem}"
    raise DatasetError(
        f"{redact(url)} holds a pickled petastorm schema, and petastorm's engine runs whatever its "
        f"writer put there: pass trust_unischema=True if you trust them, or {otherwise}."
    )


def require_petastorm() -> None:
    """Raises an ImportError with :func:`obstacle`'s sentence if petastorm cannot run here."""
    sentence = obstacle()
    if sentence is not None:
        raise ImportError(sentence)


def can_convert(parent_url: str, through_connect: bool) -> bool:
    """Whether petastorm's converter can write to this place.

    It needs Spark's Java objects, which Spark Connect does not offer, and a storage that it can
    delete from at exit, which with today's fsspec is the local one and HDFS.
    """
    place = local_path(parent_url) is not None or parent_url.startswith("hdfs:")
    return place and not through_connect and obstacle() is None


def materialize(df: DataFrame, parent_url: str, row_group_size_bytes: int, codec: str) -> str:
    """Has petastorm's converter write ``df`` into a new directory below ``parent_url``.

    Returns:
        The directory's URL.
    """
    with quiet():
        from petastorm.spark import spark_dataset_converter

    # petastorm's public function would count rows in a second job and read the schema in a third.
    url: str = spark_dataset_converter._materialize_df(
        df,
        parent_cache_dir_url=parent_url,
        parquet_row_group_size_bytes=row_group_size_bytes,
        compression_codec=codec,
        # The DataFrame's columns have their final types already.
        dtype=None,
    )
    # petastorm also deletes the files at exit, by calls that raise a FutureWarning.
    atexit.register(warnings.filterwarnings, "ignore", category=FutureWarning, module="petastorm")
    return url
