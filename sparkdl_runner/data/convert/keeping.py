"""``keep_hours``: a conversion of a DataFrame is kept, and equal ones of other sessions find it.

They find it by a key, which follows from the plan, the settings and the sources.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl_runner.data.convert.described import converter_of
from sparkdl_runner.data.convert.plan import ConversionPlan, WriteSettings
from sparkdl_runner.data.convert.sources import Request, elements
from sparkdl_runner.data.convert.write import write_parquet
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.describe import commit, warn_of_ragged
from sparkdl_runner.data.dataset.place import CachePlace
from sparkdl_runner.data.keep import kept
from sparkdl_runner.data.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.filesystem import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRUSTED_USERS_CONF = "sparkdl_runner.converter.trustedUsers"
"""Names of other users, with commas between, whose kept conversions are read; ``*`` for all."""

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_KNOWN = (_EXPRESSIONS, _PLANS, "org.apache.spark.sql.execution.datasources.LogicalRelation")
# Parts of a plan that show only a name, not their code or their rows.
_OPAQUE = re.compile(
    r"UDF|UDAF|UDTF|UserDefined|Python|Pandas|Arrow|InR$|Typed|Mapped|MapElements|MapPartitions"
    r"|AppendColumns|Invoke|NewInstance|Aggregator|Deserialize|Serialize|Script|LocalRelation"
    r"|LogicalRDD|ApplyFunction|ExternalMapTo|MapObjects|objects\.|CoGroup|MapGroups|State"
)
_CLASS = re.compile(r'"class":"([^"]+)"')
_OF_THIS_PROCESS = re.compile(r'"jvmId":"[^"]*"')
_CUT = re.compile(r"\.\.\. \d+ more fields")
_MOST_FIELDS = "spark.sql.debug.maxToStringFields"
_ELSEWHERE = ("spark.sql.warehouse.dir", _MOST_FIELDS)

WAY_OUT = (
    "so another session could not tell whether its rows are the same. Leave out keep_hours, or "
    "convert by write_conversion(df, url), to a place that you name"
)


def find_or_make(
    plan: ConversionPlan, place: CachePlace, request: Request, keep_hours: float
) -> SparkDatasetConverter:
    """A kept conversion of an equal DataFrame, or a new one; see ``kept.find_or_make``.

    petastorm writes none of them: it would delete the files at exit.

    Raises:
        ValueError: Another session could not tell whether a DataFrame is equal.
    """
    spark = request.df.sparkSession
    names = (spark.conf.get(TRUSTED_USERS_CONF, "") or "").split(",")
    trusted = {name.strip() for name in names if name.strip()}
    place = replace(place, private=place.private and not trusted, trusted_users=trusted)
    key = key_of(request, plan.settings)

    def convert(url: str, name: str) -> tuple[str, Dataset]:
        written = write_parquet(plan, url, name)
        url, dataset = commit(written, place.storage_options, plan.settings.allow_nulls)
        warn_of_ragged(dataset)
        return url, dataset

    found = kept.find_or_make(place, key, keep_hours * 3600, _in_words(request), convert)
    return converter_of(found.url, found.dataset, checked=found.checked, delete=found.lease.let_go)


def _in_words(request: Request) -> str:
    folders = sorted({file.path.rpartition("/")[0] for file in request.sources.files})
    shown = ", ".join(redact(folder) for folder in folders[:3])
    more = f" and {len(folders) - 3:,} more folders" if len(folders) > 3 else ""
    return f"{shown or 'a plan without files'}{more}"


def key_of(request: Request, settings: WriteSettings) -> str:
    """64 hex digits that are equal, in any session, where a conversion gives the same.

    They follow from the plan, the settings of Spark SQL, the columns, how files are read, the
    files with their sizes and times, and how the conversion is written.

    Args:
        request: What is to be converted.
        settings: How it is written.

    Raises:
        ValueError: Something that decides the rows is not in the plan.
    """
    df, sources = request.df, request.sources
    if sources.unknown is not None:
        raise ValueError(f"The DataFrame reads from {sources.unknown}, {WAY_OUT}.")
    change = request.change()
    if change is not None:
        raise ValueError(f"{change} So it cannot be kept: keep_hours is for files that stay.")
    if not hasattr(df, "_jdf"):
        raise ValueError(f"Through Spark Connect a plan does not show its files, {WAY_OUT}.")
    plan = df._jdf.queryExecution().analyzed().canonicalized()
    as_json = _OF_THIS_PROCESS.sub("", plan.toJSON())
    for name in _CLASS.findall(as_json):
        if not name.startswith(_KNOWN) or _OPAQUE.search(name):
            raise ValueError(
                f"The DataFrame's plan has a part ({name.rpartition('.')[2]}) of which it does not "
                f"show what it does or holds, {WAY_OUT}."
            )
    of_spark = {
        name: value
        for name, value in _settings(df).items()
        if name.startswith("spark.sql.") and name not in _ELSEWHERE
    }
    parts = [
        df.sparkSession.version,
        as_json,
        _as_text(df, plan),
        vars(settings),
        df.schema.json(),
        of_spark,
        _readers(df),
        sorted(sources.files),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _settings(df: DataFrame) -> dict[str, str]:
    found: Any = df.sparkSession._jsparkSession.conf().getAll()
    return {pair._1(): pair._2() for pair in elements(found.toSeq())}


def _as_text(df: DataFrame, plan: Any) -> str:
    """The plan in words, which have what its JSON leaves out, such as whether a cast may fail."""
    conf = df.sparkSession.conf
    before = conf.get(_MOST_FIELDS, None)
    conf.set(_MOST_FIELDS, str(2**31 - 1))
    try:
        text: str = plan.toString()
    finally:
        if before is None:
            conf.unset(_MOST_FIELDS)
        else:
            conf.set(_MOST_FIELDS, before)
    if _CUT.search(text):
        raise ValueError(f"The DataFrame's plan is too wide to be told in full, {WAY_OUT}.")
    return text


def _readers(df: DataFrame) -> list[list[str]]:
    """How each folder of files is read: the format, its options, and a table's version."""
    found = []
    plan = df._jdf.queryExecution().optimizedPlan()
    for part in (plan, *elements(plan.subqueriesAll())):
        for leaf in elements(part.collectLeaves()):
            if leaf.getClass().getSimpleName() != "LogicalRelation":
                continue
            relation = leaf.relation()
            index = relation.location()
            own = index.getClass().getName().startswith("org.apache.spark.")
            try:
                # The files of a Delta table are the same before and after a row was deleted.
                version = "" if own else str(index.tableVersion())
            except Exception:
                kind = index.getClass().getSimpleName()
                raise ValueError(f"The DataFrame reads the files of {kind}, {WAY_OUT}.") from None
            found.append(
                [
                    relation.fileFormat().getClass().getName(),
                    relation.dataSchema().json(),
                    relation.partitionSchema().json(),
                    version,
                    *sorted(
                        f"{pair._1()}={pair._2()}" for pair in elements(relation.options().toSeq())
                    ),
                ]
            )
    return found
