"""The score job: a model of a registry or a run is applied to a table."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.nearest import nearest
from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing.command import Command
from sparkdl_runner.jobs.scoring.failure import cause
from sparkdl_runner.jobs.scoring.features import features, spark_type
from sparkdl_runner.jobs.scoring.output import check_columns, check_output, write_scores
from sparkdl_runner.jobs.scoring.predictions import with_predictions
from sparkdl_runner.jobs.scoring.settings import ScoreSettings
from sparkdl_runner.jobs.spark.session import spark_session
from sparkdl_runner.jobs.training import mlflow_run
from sparkdl_runner.tensors.served import MAY_UNPICKLE
from sparkdl_runner.tracking.settings import Tracking

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(settings: ScoreSettings) -> dict[str, Any]:
    """Scores."""
    mlflow_run.use(Tracking(tracking_uri=settings.tracking_uri))
    model = _find_model(settings.model)
    _require_trust(settings)
    with spark_session("score", slots=0) as spark:
        check_output(settings, spark)
        frame = settings.source.read(spark)
        scored = _scored(settings, spark, frame, model.signature)
        check_columns(settings, spark, scored)
        write_scores(settings, spark, scored)
    kind = "table" if settings.is_table else "folder"
    print(f"{settings.source.place} is scored by {settings.model} in the {kind} {settings.output}.")
    return {"model": settings.model, "output": settings.output, "kind": kind}


def _scored(
    settings: ScoreSettings, spark: SparkSession, frame: DataFrame, signature: Any
) -> DataFrame:
    """The rows with their predictions, which are not computed yet.

    Raises:
        ConfigError: The columns do not fit the model, or it cannot be used.
    """
    from pyspark.errors import AnalysisException

    given = features(frame, settings.source.place, settings.features, signature)
    score = _udf(spark, settings.model, signature)
    try:
        return with_predictions(
            frame,
            settings.source.place,
            score(*given),
            settings.prediction_column,
            settings.task,
        )
    except AnalysisException as error:
        raise ConfigError(
            f"the columns of {settings.source.place} do not fit the model {settings.model}: "
            f"{cause(error)}."
        ) from None


def _find_model(uri: str) -> Any:
    """MLflow's description of the model.

    Raises:
        ConfigError: There is no such model.
    """
    import mlflow

    try:
        return mlflow.models.get_model_info(uri)
    except Exception as error:
        reason = Redactor(secrets_of())(first_line(error))
        near = "."
        match = re.match(r"models:/([^/@]+)[/@]", uri)
        if match is not None:
            try:
                names = [model.name for model in mlflow.MlflowClient().search_registered_models()]
                near = nearest(match[1], names) if match[1] not in names else "."
            except Exception:
                near = "."
        raise ConfigError(f"there is no model {uri}: {reason.rstrip('.')}{near}") from None


def _require_trust(settings: ScoreSettings) -> None:
    """Refuses to load a model that nobody has said to be trusted.

    Raises:
        ConfigError: It is not trusted, or MLflow may load none.
    """
    if not settings.trust:
        raise ConfigError(
            f"the model {settings.model} can run any code when it is loaded, as every model of "
            "MLflow's: if you know who logged it, set trust: true (--trust true)."
        )
    if os.environ.get(MAY_UNPICKLE, "true").lower() not in ("true", "1"):
        raise ConfigError(
            f"{MAY_UNPICKLE} is {os.environ[MAY_UNPICKLE]}, so that no model may be loaded that "
            f"can run code, and {settings.model} can: set it to true to score."
        )


def _udf(spark: SparkSession, uri: str, signature: Any) -> Any:
    """The model as a Spark UDF. Its result type is that of the model's outputs."""
    import mlflow.pyfunc

    outputs = signature.outputs if signature is not None else None
    arguments: dict[str, Any] = {}
    if outputs is not None and outputs.is_tensor_spec():
        named = {output.name: spark_type(output) for output in outputs.inputs}
        several = ",".join(f"{name}:{kind}" for name, kind in named.items())
        arguments["result_type"] = f"struct<{several}>" if len(named) > 1 else named.popitem()[1]
    try:
        return mlflow.pyfunc.spark_udf(spark, uri, env_manager="local", **arguments)
    except Exception as error:
        raise ConfigError(f"the model {uri} cannot be used: {cause(error)}.") from None


JOB = Command(
    name="score",
    summary="Apply a model of MLflow's to every row of a table, and write rows and predictions.",
    example="""
        for example:
          sparkdl-runner score --model models:/digits@best --trust true --source t --output scored

        score.yaml:
          model: models:/digits@champion
          trust: true
          source: {path: /data/orders.csv, where: amount > 0}
          features: [amount, weekday]
          output: /data/scored
          mode: overwrite
    """,
    settings=ScoreSettings,
    run=run,
)
