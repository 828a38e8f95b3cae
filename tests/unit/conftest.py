"""No file of unit tests leaves a process. To look after every test would take longer than it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from processes import wait_until_gone, workers


@pytest.fixture(autouse=True, scope="module")
def _leaves_no_process() -> Iterator[None]:
    yield
    assert wait_until_gone("sparkdl_runner.worker"), f"workers left behind: {workers()}"
