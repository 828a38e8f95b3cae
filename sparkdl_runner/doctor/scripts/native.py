"""Loads torch, then Horovod, and tells what each was built for: a line of JSON after each.

Run in a process of its own: a library for another torch may end it at any point.
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
    """What an error was first about: for a native library, the symbol that is missing."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return f"{type(error).__name__}: {error}"[:600]


def load_torch() -> dict[str, Any]:
    """Imports torch and asks it for GPUs."""
    import torch

    facts: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        facts["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if facts["cuda"] and not facts["gpus"]:
            try:
                torch.cuda.init()
            except Exception as error:
                facts["gpu_error"] = reason(error)
    if told:
        facts.setdefault("gpu_error", str(told[0].message)[:600])
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


for name, load in (("torch", load_torch), ("horovod", load_horovod)):
    if name in sys.argv[1:]:
        try:
            tell(name, load())
        except BaseException as error:
            tell(name, {"error": reason(error)})
