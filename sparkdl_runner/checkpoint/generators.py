"""The states of a rank's random number generators, so that training goes on with the same ones."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any


def capture() -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's own generators, CUDA's on the current device.

    Returns:
        Plain values and tensors.
    """
    import torch

    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "torch": torch.get_rng_state(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [
            str(name),
            torch.from_numpy(keys.astype("int64")),
            int(position),
            int(has_gauss),
            float(cached),
        ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def put_back(state: dict[str, Any]) -> None:
    """Sets the generators to what ``capture`` returned, as far as this process has them."""
    import torch

    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed(step: int, rank: int) -> None:
    """Seeds all generators of a rank that the checkpoint knows nothing of.

    The seed follows from the saved step and the rank: equal in each such resume, and different
    from that of every other rank.
    """
    import torch

    digest = hashlib.sha256(f"sparkdl_runner step {step} rank {rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    random.seed(number)
    torch.manual_seed(number)  # CUDA's too
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(number % (1 << 32))
