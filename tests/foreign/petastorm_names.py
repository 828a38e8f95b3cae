"""A plugin of pytest for petastorm's converter tests.

Where FOREIGN_CONVERTER is set, they get this package's ``make_spark_converter`` for petastorm's.
Tests of ``make_tf_dataset`` are left out, since TensorFlow is not here.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any
from unittest import mock

import pytest

# The chosen tests need none of these, and their file imports them all.
sys.modules["tensorflow"] = sys.modules["tensorflow.compat"] = mock.MagicMock()
sys.modules["tensorflow.compat.v1"] = mock.MagicMock()
sys.modules["petastorm.tests.test_tf_utils"] = mock.MagicMock(create_tf_graph=lambda test: test)
sys.modules["cv2"] = mock.MagicMock()

from petastorm.tests.conftest import spark_test_ctx as spark_test_ctx  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Chooses the tests, and puts this package's names into their module."""
    items[:] = [item for item in items if "make_tf_dataset" not in _source(item)]
    if os.environ.get("FOREIGN_CONVERTER"):
        for module in {item.getparent(pytest.Module) for item in items}:
            assert module is not None
            _replace(module.obj)


def _source(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    return inspect.getsource(item.function)


def _replace(tests: Any) -> None:
    from sparkdl_runner import data

    call = tests.subprocess.call

    def call_with_our_names(command: list[str]) -> int:
        return call([part.replace("petastorm.spark ", "sparkdl_runner.data ") for part in command])

    tests.make_spark_converter = data.make_spark_converter
    tests.SparkDatasetConverter = data.SparkDatasetConverter
    tests.subprocess = mock.Mock(call=call_with_our_names)
