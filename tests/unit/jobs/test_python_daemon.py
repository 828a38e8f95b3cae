"""Which archives leave the search path of Spark's Python processes, and when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_runner.jobs.spark import python_daemon


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages, with pip's pyspark and its archives."""
    for name in ("pyspark", "py4j"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    library = tmp_path / "pyspark" / "python" / "lib"
    library.mkdir(parents=True)
    jars = tmp_path / "pyspark" / "jars"
    jars.mkdir()
    for archive in (
        library / "py4j-0.10.9.7-src.zip",
        library / "pyspark.zip",
        jars / "spark-core_2.12-3.5.9.jar",
        jars / "spark-sql_2.12-3.5.9.jar",
    ):
        archive.touch()
    return tmp_path


def test_archives_of_what_is_installed_go(packages: Path) -> None:
    lib, jars = packages / "pyspark" / "python" / "lib", packages / "pyspark" / "jars"
    py4j, pyspark, core = map(
        str,
        (lib / "py4j-0.10.9.7-src.zip", lib / "pyspark.zip", jars / "spark-core_2.12-3.5.9.jar"),
    )
    other = [str(jars / "spark-sql_2.12-3.5.9.jar"), "/usr/lib/python311.zip", "/srv/mine.zip"]
    paths = [pyspark, py4j, core, *other, str(packages)]
    assert python_daemon.without_archives(paths) == [*other, str(packages)]
    # The folder is not searched, or the package is not in it.
    assert python_daemon.without_archives(paths[:-1]) == paths[:-1]
    (packages / "py4j" / "__init__.py").unlink()
    assert python_daemon.without_archives(paths) == [py4j, *other, str(packages)]


def test_is_asked_for_where_spark_and_its_python_are_this_environment(monkeypatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert python_daemon.settings() == {"spark.python.daemon.module": python_daemon.__name__}
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/bin/python")
    assert python_daemon.settings() == {}
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert python_daemon.settings() == {}


def test_what_python_has_compiled_is_imported() -> None:
    home = Path(pytest.importorskip("pyspark").__file__).parent
    archives = [*home.glob("python/lib/*.zip"), *home.glob("jars/spark-core_*.jar")]
    assert len(archives) == 3
    script = (
        "import sys; from sparkdl_runner.jobs.spark.python_daemon import without_archives;"
        "sys.path[:] = without_archives(sys.path);"
        "import py4j, pyspark; print(py4j.__file__, pyspark.__file__, *sys.path)"
    )
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, archives))},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(home / "__init__.py") in told.split()
    assert not {str(path) for path in archives} & set(told.split())
