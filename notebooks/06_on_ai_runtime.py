# Databricks notebook source
# MAGIC %md
# MAGIC # On AI Runtime
# MAGIC
# MAGIC Databricks' serverless GPUs are those of the notebook's own machine. Spark is elsewhere and
# MAGIC reached through Spark Connect, and there is no Java here. So Spark writes a table into a
# MAGIC volume, and one process for each GPU trains on it. Elsewhere this notebook takes two
# MAGIC processes and a temporary folder.
# MAGIC
# MAGIC The digits come with scikit-learn, so there is nothing to download. `sparkdl_runner` must be
# MAGIC installed.

# COMMAND ----------

import logging
import os
import sys
import tempfile

import mlflow
import torch
from sklearn.datasets import load_digits

from sparkdl_runner import DistributedRunner
from sparkdl_runner.air import distributed
from sparkdl_runner.air.runtime import get_global_rank, get_world_size
from sparkdl_runner.data import make_spark_converter, write_conversion

logging.getLogger("mlflow").setLevel(logging.ERROR)

if "DATABRICKS_RUNTIME_VERSION" in os.environ:
    spark.sql("CREATE VOLUME IF NOT EXISTS sparkdl_runner")
    catalog, schema = spark.sql("SELECT current_catalog(), current_schema()").first()
    volume = f"dbfs:/Volumes/{catalog}/{schema}/sparkdl_runner"
else:
    # On Databricks a notebook has a Spark session and an MLflow experiment. Here they are made.
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Other hosts do not reach Spark, and other users do not read what is written here.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.umask(0o077)
    builder = SparkSession.builder
    if "SPARK_REMOTE" not in os.environ:
        settings = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
        builder = builder.master("local[2]").config(map=settings)
    spark = builder.getOrCreate()
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("digits")
    temporary = tempfile.TemporaryDirectory()
    volume = f"file://{temporary.name}"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A table, in a volume
# MAGIC
# MAGIC Any table will do. `write_conversion` has Spark write it as Parquet files that ranks read;
# MAGIC a later session opens them by `make_spark_converter`, without Spark.

# COMMAND ----------

pixels, labels = load_digits(return_X_y=True)
rows = [(image.tolist(), int(label)) for image, label in zip(pixels / 16, labels, strict=True)]
table = spark.createDataFrame(rows, "pixels array<float>, label long")
write_conversion(table, f"{volume}/digits", overwrite=True)
digits = make_spark_converter(f"{volume}/digits")
print(len(digits), "images")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The training
# MAGIC
# MAGIC A function that runs in each rank. All ranks take the same number of steps, in an order that
# MAGIC the seed decides. A checkpoint holds the place in the data as well, so a restored training
# MAGIC goes on with the next batch.

# COMMAND ----------


def train(epochs, folder, batch_size=32):
    import torch.distributed as dist

    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.tracking import log_metrics

    dist.init_process_group()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = torch.nn.parallel.DistributedDataParallel(network.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    with (
        digits.make_torch_dataloader(batch_size, num_epochs=epochs, seed=0) as loader,
        CheckpointManager(folder) as checkpoints,
    ):
        restored = checkpoints.restore(model, optimizer, loader)
        first = restored.step if restored else 0
        for step, batch in enumerate(loader, first + 1):
            scores = model(batch["pixels"].to(device))
            loss = torch.nn.functional.cross_entropy(scores, batch["label"].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log_metrics(step, loss=loss)
            if step % loader.steps_per_epoch == 0:
                checkpoints.save(step, model, optimizer, loader)
    dist.destroy_process_group()
    return first, step, loss.item()


# COMMAND ----------

# MAGIC %md
# MAGIC A negative number starts the ranks on this machine: one for each GPU.

# COMMAND ----------

ranks = torch.cuda.device_count() or 2
runner = DistributedRunner(num_proc=-ranks)
checkpoints = f"{volume}/checkpoints"
first, last, loss = runner.run(train, epochs=3, folder=checkpoints)
print(f"from step {first} to {last}: loss {loss:.3f}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Going on
# MAGIC
# MAGIC The same call with more epochs begins where the last one has ended, also in a new session on
# MAGIC another day.

# COMMAND ----------

first, last, loss = runner.run(train, epochs=6, folder=checkpoints)
print(f"from step {first} to {last}: loss {loss:.3f}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Code for `@distributed`
# MAGIC
# MAGIC What was written for `databricks.air` or `serverless_gpu` needs another import, and nothing
# MAGIC else. It returns the values of all ranks.

# COMMAND ----------


@distributed(num_accelerators=ranks)
def say_hello(name):
    return f"{name} {get_global_rank() + 1} of {get_world_size()}"


print(say_hello.distributed("rank"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## In MLflow
# MAGIC
# MAGIC Each call was one MLflow run, on Databricks in the notebook's experiment.

# COMMAND ----------

runs = mlflow.search_runs(max_results=8)
runs[["tags.mlflow.runName", "params.epochs", "status", "metrics.loss"]]
