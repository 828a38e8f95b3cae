"""What tests run as TensorFlow ranks. The code is as TensorFlow's own guides have it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from sparkdl_runner import current_world
from sparkdl_runner.launch.backends import get_backend


def train_by_hand(converter: Any) -> dict[str, Any]:
    """A custom loop over all rows in one step; and who gets to this rank's server."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with converter.make_tf_dataset(global_batch_size=104) as rows:
        dataset = strategy.distribute_datasets_from_function(lambda _: rows)
        with strategy.scope():
            weights = tf.Variable([[0.5], [-0.5], [1.0]])

        @tf.function
        def step(batch: Any) -> Any:
            def gradient(batch: Any) -> Any:
                with tf.GradientTape() as tape:
                    error = tf.matmul(batch.features, weights)[:, 0] - batch.label
                    loss = tf.nn.compute_average_loss(tf.square(error), global_batch_size=104)
                mine = tape.gradient(loss, weights)
                return tf.distribute.get_replica_context().all_reduce("sum", mine)

            return strategy.run(gradient, args=(batch,))

        gradient = step(next(iter(dataset))).numpy().tolist()
    place = json.loads(os.environ["TF_CONFIG"])
    address = place["cluster"]["worker"][place["task"]["index"]]
    return {
        "gradient": gradient,
        "replicas": strategy.num_replicas_in_sync,
        "reached_from": [one for one in ("127.0.0.1", "127.0.0.2") if _reaches(address, one)],
        "keras_3": keras_3_fits(strategy),
        "catches_sigterm": _catches(signal.SIGTERM),
        "modules": sorted({"torch", "pyspark"} & sys.modules.keys()),
    }


def _catches(number: int) -> bool:
    """Whether there is a handler in this process, native or not; see proc(5), ``status``."""
    status = Path("/proc/self/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def _reaches(server: str, source: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.5, (source, 0)).close()
    except TimeoutError:
        return False
    return True


def read_and_resume(converter: Any, saved: dict[str, Any] | None = None) -> dict[str, Any]:
    """The rows of two epochs, or of what follows a state, and the state after five steps."""
    reader = converter.make_tf_dataset(global_batch_size=24, num_epochs=2, seed=7, lanes=8)
    with reader as dataset:
        if saved is not None:
            reader.load_state_dict(saved)
        state = reader.state_dict(5)
        batches = [(batch.id.numpy().tolist(), batch.name.numpy().tolist()) for batch in dataset]
        third_epoch = next(iter(dataset)).id.numpy().tolist()
    return {
        "ids": [ids for ids, _ in batches],
        "names": [names for _, names in batches],
        "state": state,
        "steps_per_epoch": reader_steps(converter),
        "third_epoch": third_epoch,
    }


def reader_steps(converter: Any) -> int:
    with (reader := converter.make_tf_dataset(global_batch_size=24)) as _:
        return reader.steps_per_epoch


def fit(converter: Any, backup: str, *, epochs: int = 3, dies: bool = False) -> dict[str, Any]:
    """Keras' fit, which goes on after a restart; rank 1 dies once, in the last epoch, if asked."""
    import tensorflow as tf
    import tf_keras as keras

    world = current_world()
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    reader = converter.make_tf_dataset(global_batch_size=24, seed=7)
    seen: list[int] = []

    def start(logs: Any) -> None:
        seen.append(int(model.optimizer.iterations.numpy()))
        reader.load_state_dict(reader.state_dict(seen[0]))

    def die(epoch: int, logs: Any) -> None:
        if dies and world.attempt == 0 and world.rank == 1 and epoch == epochs - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with reader as rows:
        dataset = rows.map(lambda row: (row.features, row.label))
        history = model.fit(
            strategy.distribute_datasets_from_function(lambda _: dataset),
            epochs=epochs,
            steps_per_epoch=reader.steps_per_epoch,
            callbacks=[
                keras.callbacks.BackupAndRestore(backup),
                keras.callbacks.LambdaCallback(on_train_begin=start, on_epoch_begin=die),
            ],
            verbose=0,
        )
    return {
        "steps_before": seen[0],
        "attempt": world.attempt,
        "epochs": len(history.history["loss"]),
        "weights": [one.tolist() for one in model.get_weights()],
    }


def keras_3_fits(strategy: Any) -> str:
    """What is said to the fit that Keras 3's guides show for one worker; "" if nothing is."""
    import keras
    import numpy as np

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    try:
        model.fit(np.ones((8, 3), np.float32), np.ones(8), verbose=0)
    except ValueError as error:
        return get_backend("tensorflow").advice(error)
    return ""


def join_late(seconds: float) -> None:
    """Rank 1 makes its strategy late."""
    import tensorflow as tf

    if current_world().rank == 1:
        time.sleep(seconds)
    tf.distribute.MultiWorkerMirroredStrategy()
