"""The module that a training is given, or that a function makes."""

from __future__ import annotations

from typing import Any

from torch import nn

from sparkdl_runner.training.description.kinds import shown


def made(model: Any) -> nn.Module:
    """The module, or what the function makes.

    Raises:
        TypeError: That is no module.
    """
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise TypeError(f"model() returned {shown(module)}; expected a torch.nn.Module.")
    return module
