# Databricks notebook source
# MAGIC %md
# MAGIC # From Horovod to DistributedDataParallel
# MAGIC
# MAGIC Horovod has had no release since 2023, and today's Databricks runtimes come without it. Code
# MAGIC for HorovodRunner still runs unchanged where Horovod is installed. This notebook shows how
# MAGIC to do without it: both train one small network, side by side. A few lines change, and the
# MAGIC result is the same.
# MAGIC
# MAGIC The digits come with scikit-learn, so there is nothing to download. `sparkdl_runner` and
# MAGIC Horovod must be installed (the README says how).

# COMMAND ----------

import difflib
import inspect
import logging
import os
import sys

import mlflow
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.tracking import Tracking, log_metrics

logging.getLogger("mlflow").setLevel(logging.ERROR)

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
# MAGIC ## What both share
# MAGIC
# MAGIC The code for the network and the images is independent of ranks.

# COMMAND ----------

pixels, labels = load_digits(return_X_y=True)
images = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
train_images, test_images = torch.utils.data.random_split(
    images, [0.8, 0.2], torch.Generator().manual_seed(0)
)


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


# COMMAND ----------

# MAGIC %md
# MAGIC ## With Horovod

# COMMAND ----------


def train_with_horovod(epochs, batch_size, learning_rate):
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    sampler = DistributedSampler(train_images, num_replicas=size, rank=rank)
    loader = DataLoader(train_images, batch_size, sampler=sampler)
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            log_metrics(step, loss=loss, total_steps=epochs * len(loader))

    inputs, targets = test_images[list(range(rank, len(test_images), size))]
    correct = (model(inputs).argmax(1) == targets).sum()
    correct = hvd.allreduce(correct, op=hvd.Sum)
    accuracy = float(correct) / len(test_images)
    log_metrics(step, accuracy=accuracy)
    hvd.shutdown()
    return accuracy


# COMMAND ----------

# MAGIC %md
# MAGIC ## With DistributedDataParallel

# COMMAND ----------


def train_with_torch(epochs, batch_size, learning_rate):
    import torch.distributed as dist

    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()

    model = torch.nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)

    sampler = DistributedSampler(train_images, num_replicas=size, rank=rank)
    loader = DataLoader(train_images, batch_size, sampler=sampler)
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            log_metrics(step, loss=loss, total_steps=epochs * len(loader))

    inputs, targets = test_images[list(range(rank, len(test_images), size))]
    correct = (model(inputs).argmax(1) == targets).sum()
    dist.all_reduce(correct)
    accuracy = float(correct) / len(test_images)
    log_metrics(step, accuracy=accuracy)
    dist.destroy_process_group()
    return accuracy


# COMMAND ----------

# MAGIC %md
# MAGIC ## What changed, line by line

# COMMAND ----------

before, after = (
    inspect.getsource(function).splitlines() for function in (train_with_horovod, train_with_torch)
)
changes = list(difflib.unified_diff(before, after, "with Horovod", "with torch", n=0, lineterm=""))
print(*(line for line in changes if not line.startswith("@@")), sep="\n")

# COMMAND ----------

# MAGIC %md
# MAGIC What else a larger program may have to change:
# MAGIC
# MAGIC | with Horovod | with torch |
# MAGIC |---|---|
# MAGIC | `torch.cuda.set_device(hvd.local_rank())` | `torch.cuda.set_device(local_rank)` (1) |
# MAGIC | `hvd.allreduce(x)`, the **average** | `dist.all_reduce(x)`, then `x / size` (2) |
# MAGIC | `hvd.broadcast_object(x)` | `dist.broadcast_object_list([x])`, in place |
# MAGIC | `hvd.allgather(x)` | `dist.all_gather_into_tensor(out, x)` |
# MAGIC | `backward_passes_per_step=n` | `with model.no_sync():` (3) |
# MAGIC | `model.state_dict()` | `model.module.state_dict()` |
# MAGIC | `HorovodRunner(np=2)` | `DistributedRunner(num_proc=2, backend="torch")` |
# MAGIC
# MAGIC (1) `local_rank = current_world().local_rank`, imported from `sparkdl_runner`.
# MAGIC
# MAGIC (2) The one to look for: without an `op`, Horovod averages and torch sums, and torch changes
# MAGIC its argument.
# MAGIC
# MAGIC (3) Around all backward passes but the last before a step.

# COMMAND ----------

# MAGIC %md
# MAGIC ## What comes out
# MAGIC
# MAGIC Both are run on Spark, as two ranks, with the same settings.

# COMMAND ----------

runs = {}
for backend, train in (("horovod", train_with_horovod), ("torch", train_with_torch)):
    config = RunConfig(tracking=Tracking(run_name=backend))
    runner = DistributedRunner(num_proc=2, backend=backend, run_config=config)
    accuracy = runner.run(train, epochs=15, batch_size=32, learning_rate=0.05)
    print(f"{backend}: accuracy {accuracy:.4f}")
    runs[backend] = runner.mlflow_run_id

# COMMAND ----------

client = mlflow.MlflowClient()
losses = pd.DataFrame(
    {
        backend: {one.step: one.value for one in client.get_metric_history(run_id, "loss")}
        for backend, run_id in runs.items()
    }
)
losses.plot(figsize=(7, 2.8), xlabel="step", ylabel="loss", style={"torch": "--"}, linewidth=2)
difference = (losses.horovod - losses.torch).abs().max()
print(f"largest difference of the two losses at any of {len(losses)} steps: {difference:.1g}")

# COMMAND ----------

# MAGIC %md
# MAGIC The two curves lie on each other, since both average the same gradients of the same rows.
# MAGIC With many ranks they may part in the last digits, where sums are added up in another order.
# MAGIC
# MAGIC Checkpoints, restarts and the MLflow run are the same with both backends. With
# MAGIC DistributedDataParallel you can also use the rest of torch: FSDP if a model is too large for
# MAGIC one GPU, or `torch.compile`.
