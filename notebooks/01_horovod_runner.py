# Databricks notebook source
# MAGIC %md
# MAGIC # HorovodRunner and MLflow on handwritten digits
# MAGIC
# MAGIC A small network learns to read handwritten digits. One training function runs three times:
# MAGIC in one process, as two processes on the driver, and as two ranks on Spark. Each time the
# MAGIC runner keeps an MLflow run, with metrics, logs and, if wanted, the model. At the end a rank
# MAGIC fails, to show what that looks like.
# MAGIC
# MAGIC The digits come with scikit-learn, so there is nothing to download. `sparkdl_runner` and
# MAGIC Horovod must be installed (the README says how).

# COMMAND ----------

import logging
import os
import sys

import matplotlib.pyplot as plt
import mlflow
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sparkdl_runner import HorovodRunner, WorkerFailedError, log_to_driver
from sparkdl_runner.tracking import log_metrics, log_model

logging.getLogger("mlflow").setLevel(logging.ERROR)
os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"

# On Databricks a notebook has a Spark session and an MLflow experiment. Elsewhere they are made.
if "DATABRICKS_RUNTIME_VERSION" not in os.environ:
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
# MAGIC ## The data
# MAGIC
# MAGIC 1797 images of 8 by 8 pixels; a fifth of them is kept back for the test.

# COMMAND ----------

pixels, labels = load_digits(return_X_y=True)
train_pixels, test_pixels, train_labels, test_labels = (
    torch.tensor(part)
    for part in train_test_split(
        pixels.astype("float32") / 16, labels, test_size=0.2, random_state=0
    )
)
print(len(train_pixels), "images to learn from,", len(test_pixels), "to test with")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The training function
# MAGIC
# MAGIC This is ordinary Horovod code. Every rank starts from the same weights and goes through its
# MAGIC own part of the images; `DistributedOptimizer` averages the gradients, so the weights stay
# MAGIC the same on all ranks. What the function uses from the notebook, such as the images, travels
# MAGIC with it.
# MAGIC
# MAGIC Three calls are not Horovod's: `log_metrics` tells MLflow how each step went, `log_model`
# MAGIC saves the network there, and `log_to_driver` shows a line here, in the notebook.

# COMMAND ----------


def train(epochs, keep_model=False, batch_size=32, learning_rate=0.003):
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = TensorDataset(train_pixels, train_labels)
    sampler = DistributedSampler(images, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(images, batch_size, sampler=sampler)
    mine = slice(hvd.rank(), None, hvd.size())

    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            log_metrics(step, loss=loss, samples=len(inputs), total_steps=epochs * len(loader))
        correct = (model(test_pixels[mine]).argmax(1) == test_labels[mine]).sum()
        accuracy = float(hvd.allreduce(correct, op=hvd.Sum)) / len(test_labels)
        log_metrics(step, accuracy=accuracy)
        if hvd.rank() == 0 and epoch % 5 == 4:
            log_to_driver(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.3f}")
    if keep_model:
        log_model(model, input_example=test_pixels[:4], step=step)
    return accuracy


# COMMAND ----------

# MAGIC %md
# MAGIC ## On the driver first
# MAGIC
# MAGIC A negative `np` starts processes on the driver, without Spark: the quickest way to find
# MAGIC errors.

# COMMAND ----------

for np in (-1, -2):
    accuracy = HorovodRunner(np=np).run(train, epochs=2)
    print(f"np={np}: accuracy {accuracy:.3f}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## On Spark
# MAGIC
# MAGIC A positive `np` starts that many tasks of one Spark job, one for each rank. Nothing else
# MAGIC changes.

# COMMAND ----------

accuracy = HorovodRunner(np=2).run(train, epochs=20, keep_model=True)
print(f"np=2: accuracy {accuracy:.3f}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What MLflow has
# MAGIC
# MAGIC Three calls, three runs. On Databricks they are in the notebook's experiment, behind the
# MAGIC flask icon. Elsewhere `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows them in a
# MAGIC browser: metrics as charts, the parameters, each rank's log and the model. Here they are as
# MAGIC a table.

# COMMAND ----------

runs = mlflow.search_runs(max_results=3)
runs[
    [
        "tags.mlflow.runName",
        "tags.sparkdl_runner.num_proc",
        "status",
        "metrics.loss",
        "metrics.accuracy",
    ]
]

# COMMAND ----------

# MAGIC %md
# MAGIC Every step's loss is there, and so is the model. It loads without this notebook.

# COMMAND ----------

run_id = runs.run_id[0]
losses = mlflow.MlflowClient().get_metric_history(run_id, "loss")
model = mlflow.pyfunc.load_model(f"runs:/{run_id}/model")
read_as = model.predict(test_pixels[:8].numpy()).argmax(1)

figure = plt.figure(figsize=(9, 2.5), layout="constrained")
left, right = figure.subfigures(1, 2)
axes = left.subplots()
axes.plot([one.step for one in losses], [one.value for one in losses])
axes.set(xlabel="step", ylabel="loss")
for axes, image, digit in zip(right.subplots(2, 4).flat, test_pixels[:8], read_as, strict=True):
    axes.imshow(image.reshape(8, 8), cmap="gray_r")
    axes.set_title(f"a {digit}")
    axes.axis("off")

# COMMAND ----------

# MAGIC %md
# MAGIC ## When a rank fails
# MAGIC
# MAGIC The other ranks are ended and the driver raises, with the rank, its host, what the rank
# MAGIC printed last, and as the cause the error that it raised there. The MLflow run ends as
# MAGIC FAILED. More of this is in the notebook on surviving failures.

# COMMAND ----------


def fail():
    import horovod.torch as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise ValueError("rank 1 has met bad data")
    hvd.allreduce(torch.ones(1))


try:
    HorovodRunner(np=2).run(fail)
except WorkerFailedError as error:
    print(f"rank {error.rank} on {error.host}:", repr(error.__cause__))
