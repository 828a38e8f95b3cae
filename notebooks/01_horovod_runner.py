# Databricks notebook source
# MAGIC %md
# MAGIC # HorovodRunner, first steps
# MAGIC
# MAGIC The same function is run three times: in one process, as two processes on the driver, and as
# MAGIC two ranks on Spark. It needs `sparkdl_runner` and Horovod on the cluster (the README says
# MAGIC how) and reads scikit-learn's handwritten digits, so there is nothing to download.

# COMMAND ----------

import os
import sys

import torch
from sklearn.datasets import load_digits

from sparkdl_runner import HorovodRunner, log_to_driver

# COMMAND ----------

# MAGIC %md
# MAGIC ## The training function
# MAGIC
# MAGIC This is ordinary Horovod code. Each rank takes every `hvd.size()`-th row; the gradients are
# MAGIC averaged by `DistributedOptimizer`, and the accuracy over all ranks by `allreduce`.

# COMMAND ----------


def train(epochs, learning_rate):
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    mine = slice(hvd.rank(), len(labels) // hvd.size() * hvd.size(), hvd.size())
    inputs = torch.tensor(pixels[mine], dtype=torch.float32) / 16
    targets = torch.tensor(labels[mine])

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if hvd.rank() == 0 and epoch % 20 == 0:
            log_to_driver(f"epoch {epoch}: loss {float(loss):.3f}")
    correct = (model(inputs).argmax(1) == targets).float().mean()
    return float(hvd.allreduce(correct, name="accuracy"))


# COMMAND ----------

# MAGIC %md
# MAGIC ## On the driver first
# MAGIC
# MAGIC A negative `np` starts processes on the driver, without Spark: the quickest way to find
# MAGIC errors.

# COMMAND ----------

print("one process:", HorovodRunner(np=-1).run(train, epochs=10, learning_rate=0.01))
print("two processes:", HorovodRunner(np=-2).run(train, epochs=10, learning_rate=0.01))

# COMMAND ----------

# MAGIC %md
# MAGIC ## On Spark
# MAGIC
# MAGIC On Databricks there is a session, called `spark`. Elsewhere this makes one with two slots.

# COMMAND ----------

if "spark" not in globals():
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").getOrCreate()

accuracy = HorovodRunner(np=2).run(train, epochs=100, learning_rate=0.01)
print("accuracy on Spark:", accuracy)

# COMMAND ----------

# MAGIC %md
# MAGIC ## When a rank fails
# MAGIC
# MAGIC The driver raises, with the rank, its host, and what it raised there as the cause.

# COMMAND ----------

from sparkdl_runner import WorkerFailedError


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
