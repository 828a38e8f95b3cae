# Databricks notebook source
# MAGIC %md
# MAGIC # From a Spark table to a model, and back to a table
# MAGIC
# MAGIC Handwritten digits are rows of a Spark DataFrame. `make_spark_converter`, known from
# MAGIC Petastorm, turns them into files that training can read in batches; two ranks train a
# MAGIC network on them; and `spark_udf` lets Spark score a DataFrame with the model that MLflow has
# MAGIC kept.
# MAGIC
# MAGIC The digits come with scikit-learn, so there is nothing to download. `sparkdl_runner` must be
# MAGIC installed; Petastorm and Horovod need not be.

# COMMAND ----------

import logging
import os
import sys

import matplotlib.pyplot as plt
import mlflow
import torch
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F
from sklearn.datasets import load_digits
from sklearn.metrics import ConfusionMatrixDisplay

from sparkdl_runner import DistributedRunner, RunConfig, log_to_driver
from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.tracking import Tracking, log_metrics, log_model

logging.getLogger("mlflow").setLevel(logging.ERROR)
os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"

if "DATABRICKS_RUNTIME_VERSION" in os.environ:
    # All hosts must see the converted rows: they go to a volume, here one in the current schema.
    spark.sql("CREATE VOLUME IF NOT EXISTS sparkdl_runner")
    catalog, schema = spark.sql("SELECT current_catalog(), current_schema()").first()
    volume = f"dbfs:/Volumes/{catalog}/{schema}/sparkdl_runner"
    spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", volume)
else:
    # On Databricks a notebook has a Spark session and an MLflow experiment. Here they are made.
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Other hosts do not reach Spark, and other users do not read what is written here.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.umask(0o077)
    settings = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("digits")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A table of digits
# MAGIC
# MAGIC Each row has the 64 pixels of one image as an ML vector, as Spark's own feature pipelines
# MAGIC make them, and the digit that it shows. Any table with numbers, arrays or vectors would do.

# COMMAND ----------

pixels, labels = load_digits(return_X_y=True)
rows = [(i, Vectors.dense(pixels[i] / 16), int(labels[i])) for i in range(len(labels))]
digits = spark.createDataFrame(rows, ["id", "features", "label"])
train_rows, test_rows = digits.randomSplit([0.8, 0.2], seed=20)
digits.groupBy("label").count().orderBy("label").toPandas().set_index("label").T

# COMMAND ----------

# MAGIC %md
# MAGIC ## From rows to batches
# MAGIC
# MAGIC Spark writes the rows once, as Parquet files; training then reads them without Spark. The
# MAGIC files are deleted by `delete()`, or when this notebook's process ends.

# COMMAND ----------

train_data = make_spark_converter(train_rows.drop("id"))
test_data = make_spark_converter(test_rows.drop("id"))
print(len(train_data), "rows to learn from,", len(test_data), "to test with")

with train_data.make_torch_dataloader(batch_size=4, num_epochs=1, seed=1) as loader:
    batch = next(iter(loader))
for column, values in batch.items():
    print(f"{column}: {values.dtype}, {tuple(values.shape)}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The training function
# MAGIC
# MAGIC It takes the converters as arguments. In a rank, a loader reads that rank's shard of the
# MAGIC rows, and all ranks take the same number of steps, so that no rank waits for ever.

# COMMAND ----------


def train(train_data, test_data, epochs, batch_size):
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group()
    torch.manual_seed(20)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    with train_data.make_torch_dataloader(batch_size, num_epochs=epochs, seed=20) as loader:
        total_steps = epochs * len(loader)
        for step, batch in enumerate(loader, start=1):
            optimizer.zero_grad()
            loss = cross_entropy(model(batch["features"]), batch["label"])
            loss.backward()
            optimizer.step()
            log_metrics(step, loss=loss, samples=batch_size, total_steps=total_steps)

    # Every row counts once, so here one rank may have more batches than another.
    correct = torch.zeros(1)
    with test_data.make_torch_dataloader(64, num_epochs=1, shuffle=False, tail="uneven") as loader:
        for batch in loader:
            correct += (model.module(batch["features"]).argmax(1) == batch["label"]).sum()
    dist.all_reduce(correct)
    accuracy = float(correct) / len(test_data)

    log_metrics(step, accuracy=accuracy)
    log_model(model, input_example=batch["features"][:4], columns="features", step=step)
    if dist.get_rank() == 0:
        log_to_driver(f"{step} steps on each of {dist.get_world_size()} ranks")
    dist.destroy_process_group()
    return accuracy


# COMMAND ----------

# MAGIC %md
# MAGIC ## Training on Spark
# MAGIC
# MAGIC Two ranks, as two tasks of one Spark job. The MLflow run also notes which data went in.

# COMMAND ----------

runner = DistributedRunner(
    num_proc=2, backend="torch", run_config=RunConfig(tracking=Tracking(run_name="from a table"))
)
accuracy = runner.run(train, train_data=train_data, test_data=test_data, epochs=20, batch_size=32)
print(f"accuracy of the ranks on the test rows: {accuracy:.4f}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Scoring with Spark
# MAGIC
# MAGIC `spark_udf` makes a column function of the model, for tables of any size. It takes an array,
# MAGIC so an ML vector is made one by `vector_to_array`. The network gives ten scores; the place of
# MAGIC the highest is the digit.

# COMMAND ----------

model_uri = f"runs:/{runner.mlflow_run_id}/model"
score = mlflow.pyfunc.spark_udf(spark, model_uri, env_manager="local")
scored = (
    test_rows.withColumn("scores", score(vector_to_array("features", "float32")))
    .withColumn("prediction", F.expr("array_position(scores, array_max(scores)) - 1"))
    .withColumn("correct", F.expr("label = prediction"))
    .select("id", "label", "prediction", "correct")
)
predictions = scored.toPandas()
print(f"accuracy of Spark's predictions: {predictions.correct.mean():.4f}")
predictions.head(8)

# COMMAND ----------

# MAGIC %md
# MAGIC The share of correct rows is the one that the ranks counted. A plot shows which digits are
# MAGIC mistaken for which; it belongs to the run.

# COMMAND ----------

figure, axes = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
ConfusionMatrixDisplay.from_predictions(
    predictions.label, predictions.prediction, cmap="Blues", colorbar=False, ax=axes
)
mlflow.MlflowClient().log_figure(runner.mlflow_run_id, figure, "confusion.png")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Cleaning up
# MAGIC
# MAGIC The model and the run stay in MLflow; the converted rows are no longer needed.

# COMMAND ----------

train_data.delete()
test_data.delete()
