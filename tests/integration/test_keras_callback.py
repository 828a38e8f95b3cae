from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

CODE = """
import numpy, keras
from sparkdl_runner.horovod.tensorflow.keras import LogCallback
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = numpy.ones((8, 2)), numpy.ones((8, 1))
model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[LogCallback()])
print("---")
model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[LogCallback(per_batch_log=True)])
"""


def test_a_real_keras_training_tells_its_epochs_and_on_request_its_batches():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"KERAS_BACKEND": "torch", "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    epochs, batches = (part.split("\n") for part in done.stdout.strip().split("\n---\n"))
    assert [line.split(" ")[:3] for line in epochs] == [
        ["Epoch", str(epoch), word] for epoch in range(2) for word in ("begins", "ended")
    ]
    assert all("loss=" in line for line in epochs if "ended" in line)
    told = [line.partition(":")[0] for line in batches if "batch" in line]
    assert told == [f"Epoch {epoch} batch {batch}" for epoch in range(2) for batch in range(2)]
