"""MLflow's own store, in the folder where the driver was started: a database, and artifacts."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

_SQLITE = "sqlite:///"
ARTIFACTS = "mlruns"
"""MLflow's folder for artifacts of a database's runs, in the driver's working folder."""


def make_private(uri: str) -> None:
    """Makes a database that is not there yet, and its folder of artifacts, for this user alone.

    MLflow would make both by the umask, which mostly lets every user of the host read them. What
    exists keeps its rights.

    Args:
        uri: The default store's. Only those of SQLite are made.
    """
    path = uri.removeprefix(_SQLITE)
    if not uri.startswith(_SQLITE) or not path or "?" in path:
        return
    if not make_whole(uri, mode=0o600):
        try:
            # This file system has no hard links. MLflow fills the file, and keeps its rights.
            _make_file(path, 0o600)
        except OSError:
            return  # It exists, or cannot be made: then MLflow raises.
    with suppress(OSError):
        Path(ARTIFACTS).mkdir(mode=0o700)


def make_whole(uri: str, mode: int = 0o666) -> bool:
    """Makes a database that is not there yet, so that it is there with all of its tables or not.

    MLflow makes one table after another. A driver that is killed meanwhile would leave some of
    them, and no driver after it could open or mend the database.

    Args:
        uri: The store's. Only SQLite's are made.
        mode: Of the file, before the umask.

    Returns:
        Whether it was made; if not, MLflow makes it or says why it cannot.
    """
    path = uri.removeprefix(_SQLITE)
    if not uri.startswith(_SQLITE) or not path or "?" in path or os.path.lexists(path):
        return False
    try:
        from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine
    except ImportError:  # They are MLflow's own, and may be called otherwise one day.
        return False
    part = f"{path}.{uuid.uuid4().hex}.part"
    try:
        _make_file(part, mode)
        engine = create_sqlalchemy_engine(_SQLITE + part)
        _initialize_tables(engine)
        engine.dispose()
        os.link(part, path)  # Unless another driver was faster.
    except OSError:
        return False
    finally:
        with suppress(OSError):
            os.unlink(part)
    return True


def _make_file(path: str, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(path, flags, mode))
