"""The data of a training as MLflow's datasets: schema, digest and source."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from typing import Any

CONTEXT_TAG = "mlflow.data.context"
MAX_NAME_CHARACTERS = 500


def converters_in(ingredients: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The conversions that a function uses, by what the function calls them.

    Args:
        ingredients: What the call of the function is made of, each with words that end in its
            quoted name.
    """
    converters: dict[str, Any] = {}
    for words, value in ingredients:
        # Looked up on the class: getattr on a foreign object may run any code.
        kind = type(value)
        is_conversion = hasattr(kind, "make_torch_dataloader") and "cache_dir_url" in getattr(
            value, "__dict__", ()
        )
        if is_conversion and not any(value is known for known in converters.values()):
            name = words.rpartition("'")[0].rpartition("'")[2]
            converters[name or f"data_{len(converters)}"] = value
    return converters


def log(client: Any, run_id: str, name: str, converter: Any) -> None:
    """Logs a conversion as an input of a run."""
    client.log_inputs(run_id, datasets=[describe(name, converter)])


def difference(run: Any, name: str, converter: Any) -> str | None:
    """Says that a run read other data before under the same name; None if it did not.

    Args:
        run: The ``mlflow.entities.Run``, as it was when it was opened.
        name: What the function calls the conversion.
        converter: The conversion.
    """
    known = [
        dataset_input.dataset
        for dataset_input in getattr(run.inputs, "dataset_inputs", ())
        if any(tag.key == CONTEXT_TAG and tag.value == name for tag in dataset_input.tags)
    ]
    if not known:
        return None
    now = describe(name, converter).dataset
    if any(dataset.digest == now.digest for dataset in known):
        return None
    rows = json.loads(known[-1].profile or "{}").get("num_rows", "?")
    return (
        f"{name!r} holds other rows than when run {run.info.run_id} began: {rows} of digest "
        f"{known[-1].digest} then, {converter.dataset_size} of digest {now.digest} now"
    )


def describe(name: str, converter: Any) -> Any:
    """A conversion as an input of a run.

    The digest follows from what the files hold, so that equal data have equal digests, whenever
    and wherever they were converted.

    Returns:
        A ``mlflow.entities.DatasetInput``.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile: dict[str, Any] = {"num_rows": converter.dataset_size}
    digest = None
    if hasattr(converter, "open"):
        manifest, _, _ = converter.open()
        digest = manifest.fingerprint[:16]
        profile["num_files"] = len(manifest.files)
        profile["num_bytes"] = sum(file.size_bytes for file in manifest.files)
    dataframe = getattr(converter, "dataframe", None)
    return DatasetInput(
        Dataset(
            name=name[:MAX_NAME_CHARACTERS],
            digest=digest or f"rows-{converter.dataset_size}",
            **_source(dataframe, converter.cache_dir_url),
            schema=_schema(dataframe),
            profile=json.dumps(profile),
        ),
        [InputTag(CONTEXT_TAG, name)],
    )


def _source(dataframe: Any, conversion_url: str) -> dict[str, str]:
    """The table and the files that the DataFrame was read from; else the conversion's own.

    Returns:
        ``source_type`` and ``source`` of MLflow's data sets.
    """
    from sparkdl_runner.base.filesystem import redact  # It needs pyarrow, which a run may not.

    files: list[str] = []
    table: dict[str, Any] = {}
    if dataframe is not None:
        try:
            files = dataframe.inputFiles()
            table = _table(dataframe)
        except Exception:  # Such as a stopped session: the conversion will do.
            files, table = [], {}
    folders = sorted({redact(file.rpartition("/")[0]) for file in files})
    path = folders[0] if len(folders) == 1 else redact(conversion_url)
    kind = "delta_table" if "delta_table_version" in table else "spark"
    return {"source_type": kind, "source": json.dumps({"path": path, **table})}


def _table(dataframe: Any) -> dict[str, Any]:
    """The only table that a DataFrame reads, by MLflow's names for it, and its version in Delta."""
    if not hasattr(dataframe, "_jdf"):
        return {}  # Spark Connect tells the files alone.
    leaves = dataframe._jdf.queryExecution().analyzed().collectLeaves()
    if leaves.size() != 1:
        return {}
    leaf = leaves.apply(0)
    kind = leaf.getClass().getSimpleName()
    if kind == "DataSourceV2Relation":
        return {"table_name": str(leaf.name())}
    if kind != "LogicalRelation":
        return {}
    known = leaf.catalogTable()
    name = str(known.get().identifier().unquotedString()) if known.isDefined() else None
    location = getattr(leaf.relation(), "location", None)
    index = None if location is None else location()
    if index is not None and index.getClass().getSimpleName().startswith("Tahoe"):
        version = int(index.snapshotAtAnalysis().version())
        named = {} if name is None else {"delta_table_name": name}
        return {**named, "delta_table_version": version}
    return {} if name is None else {"table_name": name}


def _schema(dataframe: Any) -> str | None:
    if dataframe is None:
        return None
    from mlflow.models import infer_signature

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on integers and nulls, of which there are none here
            inputs = infer_signature(dataframe).inputs
        return json.dumps({"mlflow_colspec": inputs.to_dict()})
    except Exception:  # A type that MLflow has no name for.
        return None
