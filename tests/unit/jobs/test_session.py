"""Whether a Spark session has the cluster that it was asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.jobs.session import _is_registered


@pytest.mark.parametrize(
    ("master", "application_id", "is_registered"),
    [
        ("local[2]", "local-1700000000000", True),
        ("yarn", "application_1_0001", True),
        (None, "spark-application-1", True),
        ("spark://host:7077", "app-20260101000000-0000", True),
        ("spark://host:7077", "spark-application-1700000000000", False),
    ],
)
def test_only_a_standalone_master_that_is_there_gives_an_id_of_its_own(
    monkeypatch: pytest.MonkeyPatch, master: str | None, application_id: str, is_registered: bool
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    context = SimpleNamespace(master=master, applicationId=application_id)
    assert _is_registered(context) is is_registered
