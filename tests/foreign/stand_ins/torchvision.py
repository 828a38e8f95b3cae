"""What Horovod's examples and petastorm's tests take from ``torchvision``, where there is none.

It has no build for CPUs alone, and its data sets would be downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import TensorDataset


def _compose(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return call


def _noise_like_mnist(root: str, train: bool = True, **_: Any) -> TensorDataset:
    generator = torch.Generator().manual_seed(int(train))
    images = torch.randn(256, 1, 28, 28, generator=generator)
    return TensorDataset(images, torch.randint(10, (256,), generator=generator))


def _small_model() -> torch.nn.Module:
    """As many classes as the real ones, of images of any size."""
    pooled = torch.nn.AdaptiveAvgPool2d(4)
    return torch.nn.Sequential(pooled, torch.nn.Flatten(), torch.nn.Linear(48, 1000))


datasets = SimpleNamespace(MNIST=_noise_like_mnist)
models = SimpleNamespace(resnet50=_small_model)
# The images above are tensors already: nobody applies the last two.
transforms = SimpleNamespace(
    Compose=_compose, Lambda=lambda function: function, ToTensor=dict, Normalize=lambda *_: dict
)
