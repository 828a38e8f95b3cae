"""Makes ``SparkFiles`` find, in a rank, what ``addFile``, ``--files`` and ``addArchive`` sent."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from sparkdl_runner.base.importing import when_imported

FOLDER = "SPARKDL_RUNNER_SPARK_FILES"
"""The variable that holds the folder in which Spark has put these files on a rank's host."""
# The home of the class in Spark 4, and before that.
_HOMES = ("pyspark.core.files", "pyspark.files")


def make_findable() -> None:
    """Answers with the folder of ``FOLDER``, if there is one, once pyspark is imported."""
    if folder := os.environ.get(FOLDER):
        for home in _HOMES:
            when_imported(home, lambda module: _answer(module, folder))


def _answer(module: ModuleType, folder: str) -> None:
    files: Any = module.SparkFiles
    ask_spark = files.getRootDirectory.__func__

    def root_directory(cls: Any) -> str:
        # A rank may have a Spark of its own.
        is_spark_here = cls._is_running_on_worker or cls._sc is not None
        return str(ask_spark(cls)) if is_spark_here else folder

    files.getRootDirectory = classmethod(root_directory)
