"""The surroundings of ``torch.export``: one export at a time, without output, and its refusal."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
# torch.export keeps its state in global variables, so two threads would disturb one another.
_one_at_a_time = threading.Lock()


class NotExportableError(Exception):
    """Why a network has no graph, in one line."""


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")


@contextmanager
def quiet_export() -> Iterator[None]:
    """Allows one export at a time, hides torch's output, and restores the environment after it.

    torch's log goes to the stream that was there at import, so redirecting does not hide it.
    """
    logger = logging.getLogger("torch")
    with _one_at_a_time:
        level, had_cache = logger.level, _CACHE in os.environ
        logger.setLevel(logging.CRITICAL)
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                yield
        finally:
            logger.setLevel(level)
            if not had_cache:
                os.environ.pop(_CACHE, None)
