# Databricks notebook source
# MAGIC %md
# MAGIC # Surviving failures
# MAGIC
# MAGIC Training on many machines fails in more ways than training on one. This notebook makes four
# MAGIC things go wrong on purpose: a rank raises an error, a rank is killed, a rank hangs, and
# MAGIC someone cancels the run. It shows what you see each time, and how a training goes on from
# MAGIC its last checkpoint after a rank was lost.
# MAGIC
# MAGIC The digits come with scikit-learn, so there is nothing to download. `sparkdl_runner` must be
# MAGIC installed; Horovod need not be.

# COMMAND ----------

import glob
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time

import matplotlib.pyplot as plt
import mlflow
import pandas as pd
import torch
from sklearn.datasets import load_digits

from sparkdl_runner import (
    DistributedRunner,
    RunCancelledError,
    RunConfig,
    WorkerFailedError,
    WorkerHungError,
    current_world,
    log_to_driver,
)
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.tracking import Tracking, log_metrics

logging.getLogger("mlflow").setLevel(logging.ERROR)

if "DATABRICKS_RUNTIME_VERSION" in os.environ:
    # All hosts must see the checkpoints: they go to a volume, here one in the current schema.
    spark.sql("CREATE VOLUME IF NOT EXISTS sparkdl_runner")
    catalog, schema = spark.sql("SELECT current_catalog(), current_schema()").first()
    folder = tempfile.mkdtemp(dir=f"/Volumes/{catalog}/{schema}/sparkdl_runner")
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
    folder = tempfile.mkdtemp()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The training function
# MAGIC
# MAGIC Ordinary code for `torch.distributed`, with three additions. Every 20 steps the ranks save a
# MAGIC checkpoint; at the beginning they go on from the newest one, if there is any; and `accident`
# MAGIC is called at every step, to break something.

# COMMAND ----------

pixels, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)


def train(checkpoint_url, accident, steps=100):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group()
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with CheckpointManager(checkpoint_url, every_steps=20) as checkpoints:
        restored = checkpoints.restore(model, optimizer)
        if restored and dist.get_rank() == 0:
            log_to_driver(f"goes on after step {restored.step}")
        for step in range(restored.step + 1 if restored else 1, steps + 1):
            mine = torch.randint(len(inputs), (64,))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs[mine]), targets[mine])
            loss.backward()
            optimizer.step()
            accident(step)
            loss = loss.detach()
            dist.all_reduce(loss)
            log_metrics(
                step, loss=loss / dist.get_world_size(), samples=len(mine), total_steps=steps
            )
            if checkpoints.due(step):
                checkpoints.save(step, model, optimizer)

    accuracy = float((model(inputs).argmax(1) == targets).float().mean())
    log_metrics(steps, accuracy=accuracy)
    dist.destroy_process_group()
    return accuracy


def run(name, accident, **settings):
    """Trains on Spark as two ranks, in an MLflow run and with a folder of that name."""
    config = RunConfig(tracking=Tracking(run_name=name), **settings)
    runner = DistributedRunner(num_proc=2, backend="torch", run_config=config)
    return runner.run(train, checkpoint_url=os.path.join(folder, name), accident=accident)


# COMMAND ----------

# MAGIC %md
# MAGIC ## A rank raises an error
# MAGIC
# MAGIC The error on the driver names the rank and its host, and holds the traceback from there with
# MAGIC the last lines that the rank printed. Rank 0, which was only waiting for its peer, is ended.
# MAGIC The original exception is the `__cause__`.

# COMMAND ----------


def meets_bad_data(step):
    if step == 10 and current_world().rank == 1:
        print("reading rows 640 to 703")
        raise ValueError("row 667 has no label")


try:
    run("raises", meets_bad_data)
except WorkerFailedError as error:
    print(error)

# COMMAND ----------

# MAGIC %md
# MAGIC An error like this one would occur again, so it is not retried unless
# MAGIC `RunConfig(restart_user_errors=True)` is set.

# COMMAND ----------

# MAGIC %md
# MAGIC ## A rank is killed
# MAGIC
# MAGIC This is what the kernel does when memory runs out, and what happens when a spot instance is
# MAGIC taken away. With `max_restarts=1` all ranks are started once more. They find the newest
# MAGIC whole checkpoint and go on there, in the same MLflow run; no step is in it twice.

# COMMAND ----------


def is_killed_once(step):
    world = current_world()
    if step == 50 and world.rank == 1 and world.attempt == 0:
        # Checkpoints are written in the background: here, that of step 40 is.
        while not glob.glob(f"{folder}/is killed/step-40/*/manifest.json"):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)


accuracy = run("is killed", is_killed_once, max_restarts=1, restart_backoff_seconds=1)
print(f"accuracy {accuracy:.3f}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A rank hangs
# MAGIC
# MAGIC A rank that waits for ever, perhaps for a file or a lock, stops all others at their next
# MAGIC allreduce. When no rank has made progress for `hang_timeout_seconds` (half an hour unless
# MAGIC you say otherwise), the run is ended, and the error says which rank it was and where it
# MAGIC stood. With `max_restarts` the ranks would be started again here, too.

# COMMAND ----------


def waits_for_ever(step):
    if step == 30 and current_world().rank == 1:
        threading.Event().wait()


try:
    run("hangs", waits_for_ever, hang_timeout_seconds=10)
except WorkerHungError as error:
    print(str(error).partition("\n")[0])
    print(error.stacks.split("\n\n")[-1])  # The main thread is the last.

# COMMAND ----------

# MAGIC %md
# MAGIC ## Someone cancels
# MAGIC
# MAGIC In a notebook, the stop button ends a run, and so does cancelling its job in the Spark UI. A
# MAGIC program does it by a tag. In all three ways the ranks and everything that they have started
# MAGIC are gone within seconds, and the next run can begin.

# COMMAND ----------


def takes_its_time(step):
    time.sleep(0.5)


def cancels_what_runs():
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        time.sleep(0.5)
    time.sleep(5)
    spark.sparkContext.cancelJobsWithTag("digits")


spark.sparkContext.addJobTag("digits")
threading.Thread(target=cancels_what_runs, daemon=True).start()
try:
    run("is cancelled", takes_its_time)
except RunCancelledError as error:
    print(error)
finally:
    spark.sparkContext.removeJobTag("digits")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What MLflow has
# MAGIC
# MAGIC The status of every run shows how it ended, and its tags say what ended each attempt. Among
# MAGIC a run's artifacts are the full log of each rank and the error of each attempt.

# COMMAND ----------

runs = mlflow.search_runs(max_results=4).set_index("tags.mlflow.runName").rename_axis("run")[::-1]
ended_by = runs.filter(like="ended_by").rename(columns=lambda name: name.split("runner.")[-1])
pd.set_option("display.max_colwidth", None)
runs[["status"]].join(ended_by).fillna("")

# COMMAND ----------

# MAGIC %md
# MAGIC The run whose rank was killed, over time: the training stops at step 50, the ranks are
# MAGIC started again, and they repeat the ten steps since the last checkpoint. Each step is in the
# MAGIC run once.

# COMMAND ----------

losses = mlflow.MlflowClient().get_metric_history(runs.run_id["is killed"], "loss")
seconds = [(one.timestamp - losses[0].timestamp) / 1000 for one in losses]
figure, axes = plt.subplots(figsize=(7, 2.5), layout="constrained")
axes.plot(seconds, [one.step for one in losses], ".", markersize=3)
axes.set(xlabel="seconds", ylabel="step")
print(f"{len(losses)} losses of {len({one.step for one in losses})} steps")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Cleaning up
# MAGIC
# MAGIC The checkpoints are no longer needed.

# COMMAND ----------

shutil.rmtree(folder)
