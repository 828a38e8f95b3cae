"""A plugin of pytest for Spark's own tests of CrossValidator and TrainValidationSplit.

Where FOREIGN_ESTIMATOR is set, they get a ``TorchEstimator`` for their logistic regressions, both
that of Java and that of Python.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyspark.ml
import pytest
import torch
from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl_runner import RunConfig
from sparkdl_runner.estimator import TorchEstimator, TorchModel


class FirstNumber(torch.nn.Linear):
    """Tells two classes by the first of the features, however many there are."""

    def __init__(self) -> None:
        super().__init__(1, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Scores ``[rows, 2]`` of features ``[rows, any]``."""
        return super().forward(features[:, :1])


class LogisticRegression(TorchEstimator):
    """A ``TorchEstimator`` with the one Param that the tests set."""

    maxIter: Param[int] = Param(  # noqa: N815
        Params._dummy(), "maxIter", "the least number of epochs", TypeConverters.toInt
    )

    def __init__(self) -> None:
        super().__init__(
            model=FirstNumber,
            optimizer=partial(torch.optim.Adam, lr=0.1),
            loss=torch.nn.functional.cross_entropy,
            num_proc=-1,
            batch_size=2,
            run_config=RunConfig(tracking=False),
        )

    def setMaxIter(self, value: int) -> LogisticRegression:  # noqa: N802
        """Sets it."""
        self._set(maxIter=value)
        return self

    def copy(self, extra: Any = None) -> LogisticRegression:
        """Copies, and gives the Trainer its epochs."""
        copied: LogisticRegression = super().copy(extra)
        if copied.isDefined("maxIter"):
            copied._set(epochs=max(1, copied.getOrDefault("maxIter")))
        return copied


# Some of the tests import others, and the installed Spark has none.
pyspark.ml.__path__.append(str(Path(os.environ["SPARK_SOURCE"], "python/pyspark/ml").absolute()))

# What the tests compare of a model that was saved with one that was loaded.
TorchModel.intercept = property(lambda self: self.get_model().bias.tolist())  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts this package's estimator where the tests find theirs."""
    if os.environ.get("FOREIGN_ESTIMATOR"):
        for module in {item.getparent(pytest.Module) for item in items}:
            assert module is not None
            for name in ("LogisticRegression", "DummyLogisticRegression"):
                setattr(module.obj, name, LogisticRegression)
                setattr(module.obj, f"{name}Model", TorchModel)
