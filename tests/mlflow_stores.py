"""MLflow stores for tests: copies of an empty one, since to make its tables takes seconds."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

NAME = "mlflow.db"


def make_empty(folder: Path) -> Path:
    """Returns an empty store in a folder that all processes of a test session share."""
    file = folder / f"empty-{NAME}"
    if not file.exists():
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        own = file.with_name(f"{file.stem}-{os.getpid()}.db")
        SqlAlchemyStore(f"sqlite:///{own}", str(folder / "mlruns")).engine.dispose()
        own.rename(file)
    return file


def copy_empty(empty: Path, folder: Path) -> str:
    """Puts an empty store where MLflow makes its own for a program in this folder.

    Returns:
        Its tracking URI.
    """
    file = folder / NAME
    shutil.copyfile(empty, file)
    with closing(sqlite3.connect(file)) as database, database:
        artifacts = str(folder / "mlruns" / "0")
        database.execute("UPDATE experiments SET artifact_location = ?", [artifacts])
    return f"sqlite:///{file}"
