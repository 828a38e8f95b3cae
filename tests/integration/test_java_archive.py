"""A real Java writes the archive of what it loaded, and maps it when it is started again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from sparkdl_runner.jobs.spark import class_archive

SPARK = Path(pyspark.__file__).parent
pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def test_java_maps_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = (Path(sys.prefix) / "java-home").read_text().strip()
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if not class_archive.java_options():
        pytest.skip(f"the Java in {home} is older than 13")

    def load_classes(*options: str) -> str:
        """Runs the part of Spark that starts it, which ends by itself."""
        java = [f"{home}/bin/java", *shlex.split(class_archive.java_options()), *options]
        program = ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"]
        return subprocess.run(
            [*java, "-classpath", f"{SPARK}/jars/*", *program, "--help"],
            env={**os.environ, "SPARK_HOME": str(SPARK), "SPARK_SCALA_VERSION": "2.12"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert "warning" not in load_classes()
    assert "SharedArchiveFile" in class_archive.java_options()
    (loaded,) = (
        line
        for line in load_classes("-Xlog:class+load").splitlines()
        if "org.apache.spark.launcher.Main " in line
    )
    assert "shared objects file (top)" in loaded
