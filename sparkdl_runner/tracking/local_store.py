"""MLflow's own store, in the folder where the driver was started: a database, and artifacts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_SQLITE = "sqlite:///"
ARTIFACTS = "mlruns"
"""Where MLflow puts the artifacts of a database's runs: in the folder where the driver started."""


def make_private(uri: str) -> None:
    """Makes a database that is not there yet, and its folder of artifacts, for this user alone.

    MLflow would make both by the umask, which mostly lets every user of the host read them. What
    exists keeps its rights.

    Args:
        uri: The store's, where nobody has chosen one. Only SQLite's are made.
    """
    if not uri.startswith(_SQLITE):
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(uri.removeprefix(_SQLITE), flags, 0o600))
    except OSError:
        return  # It exists, or cannot be made: then MLflow raises.
    with suppress(OSError):
        Path(ARTIFACTS).mkdir(mode=0o700)
