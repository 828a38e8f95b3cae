"""The user's own network, whatever was wrapped around it; for checkpoints and for logged models."""

from __future__ import annotations

import sys
from typing import Any


def unwrapped(model: Any) -> Any:
    """The network without what data-parallel training and compiling put around it.

    Wrappers are known by their type: a network of the user's may have a ``module`` of its own.

    Raises:
        TypeError: It is wrapped by ``FullyShardedDataParallel``, inside of which is only a part.
    """
    if model is None:
        return None
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    # Looked up, not imported: an import takes a second, and a class not imported wraps nothing.
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    compiled = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(model, compiled):
            model = model._orig_mod
        elif isinstance(model, fsdp):
            raise TypeError(
                "The model is wrapped by FullyShardedDataParallel, of which no rank has all "
                "parameters by their names. Shard it by torch.distributed.fsdp.fully_shard."
            )
        else:
            return model


def is_sharded(model: Any) -> bool:
    """Whether a parameter is a ``DTensor``, of which each rank has a part."""
    if model is None or "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())
