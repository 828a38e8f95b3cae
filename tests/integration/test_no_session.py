"""Positive np where there is no Spark that could run it: one sentence, and nothing is left."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SETTINGS = Path(__file__).parents[2] / "conf" / "spark"
RUN = """
from sparkdl_runner import HorovodRunner, LaunchError
try:
    HorovodRunner(np=2).run(print)
except LaunchError as error:
    print("refused:", error)
"""
STOPPED = """
from pyspark.sql import SparkSession
SparkSession.builder.master("local[2]").getOrCreate().stop()
"""
SUBMIT = """
from sparkdl_runner import HorovodRunner
def value():
    return 7
print(HorovodRunner(np=-2).submit(value).result())
"""


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_without_a_session():
    said = run_python(RUN)
    assert said.startswith("refused: There is no Spark session: create one with")
    assert "negative number" in said


def test_after_its_session_was_stopped():
    said = run_python(STOPPED + RUN)
    assert said.startswith("refused: There is no Spark session: create one with")
    assert run_python(STOPPED + SUBMIT) == "7", "ranks on this host need none"


def test_without_pyspark():
    hide = "import sys\nsys.modules['pyspark'] = None\n"
    said = run_python(hide + RUN)
    assert "pyspark is not installed here: run pip install 'sparkdl-runner[spark]'" in said


def test_under_spark_connect_without_a_session():
    said = run_python(RUN, SPARK_CONNECT_MODE_ENABLED="1")
    if importlib.util.find_spec("grpc_status") is not None:
        assert said.startswith("refused: There is no Spark Connect session: create one with")
    else:  # In the classic lane.
        assert said.startswith("refused: Spark Connect's client is not complete here")
        assert "run pip install 'pyspark[connect]==3." in said


START = """
import os, threading, time
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""


def test_executors_without_the_package_are_named_with_the_setting():
    said = run_python(START + RUN, PYSPARK_PYTHON=sys._base_executable)
    assert said.startswith(
        f"refused: The Python that Spark starts on executors ({sys._base_executable}) has no module"
    )
    assert "Set PYSPARK_PYTHON" in said


@pytest.mark.parametrize(
    ("end", "words"),
    [
        pytest.param("session.stop", "its session was stopped.", marks=pytest.mark.one_lane),
        ("session.sparkContext._gateway.proc.kill", "its JVM died, as the driver's does of"),
    ],
)
def test_a_session_that_ends_during_a_run(end, words, no_torch, tmp_path):
    said = run_python(
        START
        + "from sparkdl_runner import HorovodRunner, RunnerError\n"
        + f"mark = {str(tmp_path / 'has begun')!r}\n"
        + "def train():\n    open(mark, 'w').close()\n    time.sleep(600)\n"
        + "def end_once_it_runs():\n"
        + "    while not os.path.exists(mark):\n        time.sleep(0.1)\n"
        + f"    {end}()\n"
        + "threading.Thread(target=end_once_it_runs, daemon=True).start()\n"
        + "try:\n    HorovodRunner(np=2).run(train)\n"
        + "except RunnerError as error:\n    print('ended:', error)\n",
        PYTHONPATH=os.pathsep.join([no_torch, *filter(None, [os.environ.get("PYTHONPATH")])]),
    )
    application = "The Spark application ended before the ranks had finished"
    assert said.startswith(f"ended: {application}: {words}")


def test_a_script_of_spark_submit_runs_a_function_of_its_own_under_the_settings_for_cpus(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "from sparkdl_runner import HorovodRunner\n"
        "import mine\n"
        "def main(a):\n"
        "    import os\n"
        "    import horovod.torch as hvd\n"
        "    hvd.init()\n"
        "    return mine.double(a) + hvd.size(), os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "if __name__ == '__main__':\n"
        "    spark = SparkSession.builder.getOrCreate()\n"
        "    print('timeout', spark.sparkContext.getConf().get('spark.barrier.sync.timeout'))\n"
        "    print('value', HorovodRunner(np=2).run(main, a=20))\n"
    )
    (tmp_path / "mine.py").write_text("def double(a):\n    return 2 * a\n")
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    submit = [f"{home}/bin/spark-submit", "--master", "local[2]"]
    done = subprocess.run(
        [*submit, "--properties-file", str(SETTINGS / "spark-defaults.conf"), str(script)],
        env={
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_CONF_DIR": str(SETTINGS),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.splitlines()
    assert {"timeout 600", "value (42, None)"} <= set(said), done.stderr[-3000:]
