"""What holds for every test: it leaves no thread and no environment variable."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

import processes  # noqa: F401  # marks what the tests start


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("sparkdl-")}


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    environment = dict(os.environ)
    yield
    assert not _threads()
    changed = {
        name
        for name in environment.keys() | os.environ.keys()
        if environment.get(name) != os.environ.get(name)
        and not name.startswith(("PYTEST", "SPARK_"))
    }
    assert not changed, f"environment variables changed: {changed}"
