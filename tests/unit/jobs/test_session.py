"""How a Spark session is asked for, and whether it has its cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyspark.sql
import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.jobs.spark import session
from sparkdl_runner.jobs.spark.session import _is_registered


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


class Builder(dict[str, str]):
    """Spark's, as far as it is asked; it starts nothing."""

    application_id = "local-1"

    def appName(self, name: str) -> Builder:  # noqa: N802
        return self.config("name", name)

    def master(self, url: str) -> Builder:
        return self.config("master", url)

    def config(self, name: str, value: str) -> Builder:
        self[name] = value
        return self

    def getOrCreate(self) -> SimpleNamespace:  # noqa: N802
        context = SimpleNamespace(
            master=self.get("master", "spark://host:7077"),
            applicationId=self.application_id,
            setLogLevel=lambda level: None,
        )
        return SimpleNamespace(sparkContext=context)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder()
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(pyspark.sql, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(session, "refuse_spark_connect", lambda: None)
    return builder


@pytest.mark.parametrize(
    ("is_chosen", "archive", "expected"),
    [
        (False, "-XX:SharedArchiveFile=/a", "-Xmx1g -XX:SharedArchiveFile=/a"),
        (False, "", "-Xmx1g"),
        (True, "-XX:SharedArchiveFile=/a", None),
    ],
)
def test_java_is_told_what_it_needs_where_nobody_has_chosen_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
    asked: Builder,
    is_chosen: bool,
    archive: str,
    expected: str | None,
) -> None:
    monkeypatch.setattr(session, "is_chosen", lambda: is_chosen)
    monkeypatch.setattr(session.class_archive, "java_options", lambda: archive)
    monkeypatch.setattr(session, "LOG4J", Path("/nowhere"))
    session.start_spark("job", slots=2, jvm_options="-Xmx1g")
    assert asked.get("spark.driver.extraJavaOptions") == expected
    assert asked.get("master") == (None if is_chosen else "local[2]")


def test_a_master_that_does_not_answer_gives_no_session(
    monkeypatch: pytest.MonkeyPatch, asked: Builder
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.setattr(session, "is_chosen", lambda: True)
    monkeypatch.setattr(asked, "application_id", "spark-application-1700000000000")
    with pytest.raises(LaunchError):
        session.start_spark("job", slots=2)
