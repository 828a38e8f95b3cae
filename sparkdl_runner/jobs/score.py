"""The score job: a model of a registry or a run is applied to a table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from sparkdl_runner.errors import ConfigError, RunnerError
from sparkdl_runner.jobs import mlflow_run, storage
from sparkdl_runner.jobs.command import Job, add_job
from sparkdl_runner.jobs.session import spark_session
from sparkdl_runner.jobs.settings import Settings
from sparkdl_runner.jobs.source import Source, is_table
from sparkdl_runner.nearest import did_you_mean, nearest
from sparkdl_runner.redaction import Redactor, secrets_of
from sparkdl_runner.tracking.settings import Tracking

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# With it, Spark 4.3 hands a function that takes a vector's array all columns as they come from the
# file, and cannot put the vector itself into Arrow. Older Sparks do not know it.
_COLUMNAR_INPUT = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"


class ScoreSettings(Settings):
    """What the score job may be told."""

    model: str = pydantic.Field(
        description="models:/name@alias, models:/name/3, models:/m-id or runs:/run_id/model"
    )
    source: Source = pydantic.Field(description="a table, or the path of files that Spark reads")
    output: str = pydantic.Field(description="a table's name, or a folder")
    format: Literal["parquet", "delta"] | None = pydantic.Field(
        None,
        description="in which the output is written; else a table's own, or the catalog's, and "
        "Parquet in a folder",
    )
    mode: Literal["error", "overwrite", "append"] = pydantic.Field(
        "error", description="what to do where the output is there already"
    )
    features: list[str] | None = pydantic.Field(
        None,
        description="which columns the model is given, as [a, b]; else those that it names, or the "
        "only one that is an array or a vector",
    )
    prediction_column: str = pydantic.Field("prediction", description="what is added to each row")
    tracking_uri: str | None = pydantic.Field(
        None, description="MLflow's store, where it is not MLFLOW_TRACKING_URI"
    )

    @property
    def is_table(self) -> bool:
        """Whether the output is a table."""
        return is_table(self.output)

    @pydantic.field_validator("output")
    @classmethod
    def _table_or_folder(cls, output: str) -> str:
        if not is_table(output) and "/" not in output:
            raise ValueError(
                f"{output!r} is no table's name (parts with other signs need `backticks`) and no "
                "folder's path, which holds a slash"
            )
        return output


def run(settings: ScoreSettings) -> None:
    """Scores."""
    mlflow_run.use(Tracking(tracking_uri=settings.tracking_uri))
    model = _find_model(settings.model)
    with spark_session("score", slots=0) as spark:
        _check_output(settings, spark)
        frame = settings.source.read(spark)
        if settings.prediction_column in frame.columns:
            raise ConfigError(
                f"{settings.source.place} has a column {settings.prediction_column!r} already: "
                "choose another prediction_column."
            )
        features = _features(settings, frame, model.signature)
        score = _udf(spark, settings.model, model.signature)
        scored = frame.withColumn(settings.prediction_column, score(*features))
        _write(settings, spark, scored)
    print(f"{settings.source.place} is scored by {settings.model} in {settings.output}.")


def _write(settings: ScoreSettings, spark: SparkSession, scored: DataFrame) -> None:
    before = spark.conf.get(_COLUMNAR_INPUT, None)
    spark.conf.set(_COLUMNAR_INPUT, "false")
    try:
        writer = scored.write.mode(settings.mode)
        if not settings.is_table:
            writer.format(settings.format or "parquet").save(settings.output)
        elif settings.format is None:
            writer.saveAsTable(settings.output)
        else:
            writer.format(settings.format).saveAsTable(settings.output)
    except Exception as error:
        raise RunnerError(f"The scores were not written: {_cause(error)}.") from error
    finally:
        if before is None:
            spark.conf.unset(_COLUMNAR_INPUT)
        else:
            spark.conf.set(_COLUMNAR_INPUT, before)


def _find_model(uri: str) -> Any:
    """What MLflow knows of the model.

    Raises:
        ConfigError: There is no such model.
    """
    import mlflow

    try:
        return mlflow.models.get_model_info(uri)
    except Exception as error:
        told = Redactor(secrets_of())(str(error).strip().splitlines()[0])
        near = "."
        match = re.match(r"models:/([^/@]+)[/@]", uri)
        if match is not None:
            try:
                names = [one.name for one in mlflow.MlflowClient().search_registered_models()]
                near = nearest(match[1], names) if match[1] not in names else "."
            except Exception:
                near = "."
        raise ConfigError(f"there is no model {uri}: {told.rstrip('.')}{near}") from None


def _check_output(settings: ScoreSettings, spark: SparkSession) -> None:
    if settings.is_table:
        if settings.mode == "error" and spark.catalog.tableExists(settings.output):
            raise ConfigError(
                f"there is a table {settings.output} already: choose another output, or --mode "
                "overwrite or append."
            )
        return
    if settings.mode == "error" and not storage.is_empty(spark, settings.output):
        raise ConfigError(
            f"there are files in {settings.output} already: choose another output, or --mode "
            "overwrite or append."
        )
    storage.check_writable(spark, settings.output)


def _features(settings: ScoreSettings, frame: DataFrame, signature: Any) -> list[Column]:
    """The columns that the model is given; MLflow's functions take arrays, and no vectors.

    Raises:
        ConfigError: They are not there, or it is not clear which they are.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import types as t
    from pyspark.sql.functions import col, struct

    names = settings.features
    inputs = signature.inputs if signature is not None else None
    named = inputs if inputs is not None and inputs.has_input_names() else None
    if named is not None:
        known = named.input_names()
        if names is None:
            optional = set(known) - set(named.required_input_names())
            names = [name for name in known if name not in optional or name in frame.columns]
        elif missing := [name for name in named.required_input_names() if name not in names]:
            raise ConfigError(
                f"features lacks {missing[0]!r}, which the model takes: it takes "
                f"{', '.join(known)}."
            )
    if names is None:
        names = [
            field.name
            for field in frame.schema
            if isinstance(field.dataType, (t.ArrayType, VectorUDT))
        ]
        if len(names) != 1:
            raise ConfigError(
                f"{settings.source.place} has {len(names)} columns of arrays or vectors, and the "
                f"model takes one: say by features which of {', '.join(frame.columns)} it is."
            )
    for name in names:
        if name not in frame.columns:
            raise ConfigError(
                f"{settings.source.place} has no column {name!r}, which the model is to be given"
                f"{did_you_mean(name, frame.columns)}"
            )
    # MLflow checks the type of a table's columns itself, and takes a tensor as it comes.
    kind = None
    if inputs is not None and inputs.is_tensor_spec() and len(names) == 1:
        kind = _spark_type(inputs.inputs[0])

    def as_taken(name: str) -> Column:
        column = col(f"`{name}`")
        if isinstance(frame.schema[name].dataType, VectorUDT):
            column = vector_to_array(column, "float32")
        return column if kind is None else column.cast(kind)

    taken = [as_taken(name) for name in names]
    if named is None:
        return taken
    # By their names: given one by one, MLflow takes them in the order of the model's.
    return [struct(*[one.alias(name) for one, name in zip(taken, names, strict=True)])]


def _spark_type(tensor: Any) -> str:
    """The type of one row of a tensor: arrays within arrays, of its numbers."""
    number = {"float64": "double", "int32": "int", "int64": "long"}.get(tensor.type.name, "float")
    depth = len(tensor.shape) - 1
    return "array<" * depth + number + ">" * depth


def _udf(spark: SparkSession, uri: str, signature: Any) -> Any:
    """The model as a function of Spark's, whose type follows from the model's outputs."""
    import mlflow.pyfunc

    outputs = signature.outputs if signature is not None else None
    arguments: dict[str, Any] = {}
    if outputs is not None and outputs.is_tensor_spec():
        arguments["result_type"] = _spark_type(outputs.inputs[0])
    try:
        return mlflow.pyfunc.spark_udf(spark, uri, env_manager="local", **arguments)
    except Exception as error:
        raise ConfigError(f"the model {uri} cannot be used: {_cause(error)}.") from None


def _cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception): ", line)]
    told = (errors or lines or [type(error).__name__])[-1 if errors else 0]
    return Redactor(secrets_of())(told).rstrip(".")[:500]


JOB = Job(
    name="score",
    summary="Apply a model of MLflow's to every row of a table, and write rows and predictions.",
    example="""
        for example:
          score.py --model models:/digits@champion --source shop.digits --output shop.scored
          score.py --model runs:/0123abcd/model --source /data/digits --output /data/scored

        score.yaml:
          model: models:/digits@champion
          source: {path: /data/digits.csv, options: {header: true, inferSchema: true}}
          features: [amount, weekday]
          output: /data/scored
          mode: overwrite
    """,
    settings=ScoreSettings,
    run=run,
)


def add_parser(subparsers: Any) -> None:
    """Adds this job to a command line that has several."""
    add_job(subparsers, JOB)
