"""The model itself, which a checkpoint holds, whatever was wrapped around it."""

from __future__ import annotations

from typing import Any


def unwrapped(model: Any) -> Any:
    """The module without what data-parallel training and compiling put around it."""
    if model is None:
        return None
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model
