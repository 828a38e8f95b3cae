# Databricks notebook source
# MAGIC %md
# MAGIC # Tuning a network with Spark ML
# MAGIC
# MAGIC `TorchEstimator` is an estimator of Spark ML's whose model is a `torch.nn.Module`: it
# MAGIC stands in a `Pipeline`, and `CrossValidator` tunes it. There is no training loop to write.
# MAGIC
# MAGIC The table is the breast cancer data that comes with scikit-learn: thirty measurements of
# MAGIC cell nuclei in a patient's sample, and whether it was benign. `sparkdl_runner` must be
# MAGIC installed.

# COMMAND ----------

import functools
import logging
import os
import sys
import tempfile

import matplotlib.pyplot as plt
import mlflow
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.tuning import CrossValidator
from sklearn.datasets import load_breast_cancer
from torchmetrics.classification import MulticlassAccuracy

from sparkdl_runner import RunConfig
from sparkdl_runner.estimator import TorchEstimator
from sparkdl_runner.tracking import Tracking

logging.getLogger("mlflow").setLevel(logging.ERROR)
os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"

if "DATABRICKS_RUNTIME_VERSION" in os.environ:
    # All hosts must see the converted rows: they go to a volume, here one in the current schema.
    spark.sql("CREATE VOLUME IF NOT EXISTS sparkdl_runner")
    catalog, schema = spark.sql("SELECT current_catalog(), current_schema()").first()
    folder = f"dbfs:/Volumes/{catalog}/{schema}/sparkdl_runner"
    spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", folder)
else:
    # On Databricks a notebook has a Spark session and an MLflow experiment. Here they are made.
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Other hosts do not reach Spark, and other users do not read what is written here.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.umask(0o077)
    settings = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    settings |= {"spark.sql.shuffle.partitions": "2"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("breast cancer")
    temporary = tempfile.TemporaryDirectory()
    folder = f"file://{temporary.name}"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A table of measurements
# MAGIC
# MAGIC Spark ML's own stages make one vector of the thirty columns, each with mean 0 and variance
# MAGIC 1. A fifth of the patients is kept for the end.

# COMMAND ----------

table = load_breast_cancer(as_frame=True).frame
columns = [name.replace(" ", "_") for name in table.columns]
patients = spark.createDataFrame(table.set_axis(columns, axis=1)).coalesce(1)
known, new = patients.randomSplit([0.8, 0.2], seed=20)
known.cache()

assembler = VectorAssembler(inputCols=columns[:-1], outputCol="measured")
scaler = StandardScaler(inputCol="measured", outputCol="features", withMean=True)
prepared = Pipeline(stages=[assembler, scaler]).fit(known)
rows = prepared.transform(known).select("features", "target").cache()
print(rows.count(), "patients to learn from,", new.count(), "to test with")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The estimator
# MAGIC
# MAGIC It takes a network, or a function that makes one; a loss; and a function that makes the
# MAGIC optimizer of the network's parameters. The loss is cross entropy, so the outputs are scores
# MAGIC of classes, and the model will add a prediction and probabilities.

# COMMAND ----------


def make_network(hidden):
    return torch.nn.Sequential(
        torch.nn.Linear(30, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2)
    )


estimator = TorchEstimator(
    model=functools.partial(make_network, hidden=16),
    optimizer=functools.partial(torch.optim.Adam, lr=0.01),
    loss=torch.nn.functional.cross_entropy,
    label_cols=["target"],
    batch_size=32,
    epochs=5,
    seed=20,
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Cross-validation
# MAGIC
# MAGIC Three settings, each tried on two halves of the rows: six trainings, two at a time, and
# MAGIC one more with the best setting on all rows. Any Param can be searched, here the learning
# MAGIC rate and the network's size. The rows of a fold are converted once for all of its
# MAGIC trainings.

# COMMAND ----------

evaluator = BinaryClassificationEvaluator(labelCol="target")
grid = [
    {
        estimator.model: functools.partial(make_network, hidden=hidden),
        estimator.optimizer: functools.partial(torch.optim.Adam, lr=rate),
    }
    for hidden, rate in ((2, 1e-4), (16, 1e-4), (16, 1e-2))
]
search = CrossValidator(
    estimator=estimator,
    estimatorParamMaps=grid,
    evaluator=evaluator,
    numFolds=2,
    parallelism=2,
    seed=20,
)
found = search.fit(rows)
for area, chosen in zip(found.avgMetrics, grid, strict=True):
    print(f"area under ROC {area:.4f} with", *(one.keywords for one in chosen.values()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The whole training
# MAGIC
# MAGIC With the setting that was best, on two ranks, in a pipeline with the scaling. A fifth of
# MAGIC the rows is for validation: after each epoch its loss and accuracy are in the model's
# MAGIC history.

# COMMAND ----------

best = grid[found.avgMetrics.index(max(found.avgMetrics))]
final = estimator.copy(best).setParams(
    num_proc=2,
    epochs=10,
    validation=0.2,
    metrics={"accuracy": MulticlassAccuracy(num_classes=2)},
    run_config=RunConfig(tracking=Tracking(run_name="best setting")),
)
fitted = Pipeline(stages=[assembler, scaler, final]).fit(known)
model = fitted.stages[-1]

figure, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
for name in ("loss", "val_loss", "val_accuracy"):
    axes.plot(range(1, 11), [epoch[name] for epoch in model.history], label=name)
axes.set_xlabel("epoch")
axes.legend()
print(f"validation accuracy: {model.history[-1]['val_accuracy']:.4f}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Predictions
# MAGIC
# MAGIC `transform` adds columns to each row, as Spark's own models do, so that Spark's evaluators
# MAGIC take them.

# COMMAND ----------

scored = fitted.transform(new)
print(f"area under ROC for new patients: {evaluator.evaluate(scored):.4f}")
scored.select("target", "prediction", "probability").limit(5).toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC ## In MLflow
# MAGIC
# MAGIC Each training was an MLflow run. On Databricks the runs are beside this notebook, behind
# MAGIC the flask icon. Elsewhere `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows them
# MAGIC in a browser.

# COMMAND ----------

runs = mlflow.search_runs(max_results=8)
experiment_id = runs.experiment_id[0]
print(f"http://127.0.0.1:5000/#/experiments/{experiment_id}/runs/{model.run_id}")
runs[
    [
        "tags.mlflow.runName",
        "tags.sparkdl_runner.num_proc",
        "params.epochs",
        "status",
        "metrics.epoch_loss",
    ]
]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Saved and loaded
# MAGIC
# MAGIC The whole pipeline is saved in Spark ML's format. A saved model is code: who can write its
# MAGIC files can have any command run by the one who loads it. So load only what you would run, and
# MAGIC say so.

# COMMAND ----------

fitted.write().overwrite().save(f"{folder}/pipeline")
os.environ["SPARKDL_RUNNER_TRUST"] = "1"
loaded = PipelineModel.load(f"{folder}/pipeline")
print(f"area under ROC of the loaded pipeline: {evaluator.evaluate(loaded.transform(new)):.4f}")
