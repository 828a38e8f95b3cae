"""Loads the given libraries, and reports each in a line of JSON.

Run in a process of its own: a library that was built for another one may end it at any point.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def tell(name: str, facts: dict[str, Any]) -> None:
    """Writes one answer, marked so that it differs from what libraries print."""
    print("\x1e" + json.dumps({name: facts}), flush=True)


def reason(error: BaseException) -> str:
    """The reason in an error: for a native library, the missing symbol."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return f"{type(error).__name__}: {error}"[:600]


def load_torch() -> dict[str, Any]:
    """Imports torch and asks it for GPUs."""
    import torch

    facts: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if facts["cuda"] and not facts["gpus"]:
            try:
                torch.cuda.init()
            except Exception as error:
                facts["gpu_error"] = reason(error)
    if caught:
        facts.setdefault("gpu_error", str(caught[0].message)[:600])
    return facts


def load_horovod() -> dict[str, Any]:
    """Imports Horovod's torch part and asks it for what it can do."""
    import horovod.torch as hvd

    if not hasattr(hvd, "init"):
        raise ImportError("horovod.torch has no native library for torch")
    return {
        name: bool(getattr(hvd, f"{name}_built")())
        for name in ("gloo", "nccl", "cuda", "mpi", "rocm")
    }


def load_tensorflow() -> dict[str, Any]:
    """Imports TensorFlow."""
    import tensorflow

    return {"version": tensorflow.__version__}


def load_petastorm() -> dict[str, Any]:
    """Imports what of petastorm a conversion and a reader need."""
    import petastorm.reader
    import petastorm.spark  # noqa: F401

    return {}


LOADERS = {
    "torch": load_torch,
    "horovod": load_horovod,
    "tensorflow": load_tensorflow,
    "petastorm": load_petastorm,
}
for name in sys.argv[1:]:
    try:
        tell(name, LOADERS[name]())
    except BaseException as error:
        tell(name, {"error": reason(error)})
