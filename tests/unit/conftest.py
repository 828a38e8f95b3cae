"""No file of unit tests leaves a process. To look after every test would take longer than it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from processes import wait_until_gone, workers

# A property has no time in it: on a busy machine an example may take a second.
settings.register_profile("any time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any time")


@pytest.fixture(autouse=True, scope="module")
def _leaves_no_process() -> Iterator[None]:
    yield
    assert wait_until_gone("sparkdl_runner.launch.worker"), f"workers left behind: {workers()}"
