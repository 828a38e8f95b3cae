"""Broken set-ups, really broken, and what the command says of each."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from broken_python import SITE, Doctor, like_this_one, record, run_doctor

from processes import running

pytestmark = pytest.mark.integration


class Refusing(http.server.BaseHTTPRequestHandler):
    """A server that wants to know who asks."""

    def do_GET(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_error(401)

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def refusing_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://someone:s3cret-word@127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def silent_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def java_that_says(folder: Path, words: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    java.chmod(0o755)
    return folder


# ---- the driver, without a session -----------------------------------------------------------


@pytest.fixture(scope="module")
def ill(tmp_path_factory) -> Doctor:
    """A driver on which much is wrong at once."""
    folder = tmp_path_factory.mktemp("ill")
    site = like_this_one(folder / "python", without=("horovod", "mlflow", "petastorm", "pyarrow"))
    record(site, "petastorm", "0.12.1")
    record(site, "pyarrow", "25.0.1")
    record(site, "mlflow", "2.9.2")
    jars = folder / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.12-3.3.1.jar").touch()
    (folder / "file").touch()
    return run_doctor(
        *("--backend", "horovod", "--folder", str(folder / "file" / "checkpoints")),
        python=folder / "python" / "bin" / "python",
        JAVA_HOME=str(java_that_says(folder / "java", 'openjdk version "1.7.0_80"')),
        SPARK_HOME=str(folder / "spark"),
        SPARK_CONNECT_MODE="1",
        MLFLOW_TRACKING_URI="http://127.0.0.1:9",
    )


@pytest.mark.one_lane
def test_a_java_that_is_too_old(ill):
    said = ill.problem("java")
    assert "Java 1.7.0_80" in said
    assert "Java 17" in said
    assert "JAVA_HOME" in said
    assert "see java" in ill.finding("spark.start")["found"]


@pytest.mark.one_lane
def test_no_horovod(ill):
    said = ill.problem("horovod")
    assert "not installed" in said
    assert "sparkdl-runner build-horovod" in said
    assert "torch backend" in said


@pytest.mark.one_lane
def test_pyarrow_too_new_for_petastorm(ill):
    said = ill.problem("petastorm")
    assert "pyarrow 25.0.1 is too new for petastorm 0.12.1" in said
    assert "pip install 'pyarrow>=14.0.1,<15'" in said


@pytest.mark.one_lane
def test_an_old_mlflow(ill):
    said = ill.problem("mlflow.version")
    assert "MLflow 2.9.2 is too old" in said
    assert "pip install 'mlflow>=2.13,<4'" in said
    assert ill.finding("mlflow.server")["status"] == "not checked"


@pytest.mark.one_lane
def test_another_spark_in_spark_home(ill):
    said = ill.problem("spark.home")
    assert "a Spark 3.3.1" in said
    assert "Unset SPARK_HOME" in said


@pytest.mark.one_lane
def test_spark_connect(ill):
    said = ill.problem("spark.connect")
    assert "SPARK_CONNECT_MODE is 1" in said
    assert "dedicated access mode" in said


@pytest.mark.one_lane
def test_a_folder_that_cannot_be_written(ill):
    said = ill.problem("folder")
    assert "cannot be written: NotADirectoryError" in said
    assert "write access" in said


@pytest.mark.one_lane
def test_what_is_broken_makes_the_exit_code_1(ill):
    assert ill.exit_code == 1
    assert ill.report["status"] == "problem"


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A full file system of 1 MiB, which needs root."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.xfail("only root can mount a small file system")
    yield path
    subprocess.run(["umount", str(path)], check=True)


HOROVOD_FOR_ANOTHER_TORCH = """
extern void _ZN3c1013MessageLoggerC1EPKcii(void);
void *PyInit_mpi_lib_v2(void) { _ZN3c1013MessageLoggerC1EPKcii(); return 0; }
"""


@pytest.fixture(scope="module")
def python_with_another_horovod(tmp_path_factory) -> Path:
    """Horovod's native library asks torch for a function that only an older one had."""
    folder = tmp_path_factory.mktemp("other")
    site = like_this_one(folder / "python", without=("horovod",))
    record(site, "horovod", "0.28.1")
    theirs, ours = SITE / "horovod", site / "horovod"
    for name in ("", "torch"):
        (ours / name).mkdir()
        for entry in (theirs / name).iterdir():
            if entry.suffix != ".so" and entry.name not in ("torch", "metadata.json"):
                (ours / name / entry.name).symlink_to(entry)
    (ours / "metadata.json").write_text('{"pytorch": "2.1.0+cu118"}')
    source = folder / "lib.c"
    source.write_text(HOROVOD_FOR_ANOTHER_TORCH)
    library = next((theirs / "torch").glob("mpi_lib_v2*.so")).name
    compiler = ["gcc", "-shared", "-fPIC", "-o", str(ours / "torch" / library), str(source)]
    subprocess.run(compiler, check=True)
    return folder / "python" / "bin" / "python"


@pytest.mark.one_lane
def test_horovod_for_another_torch_a_full_disk_no_java_and_a_server_that_hangs(
    python_with_another_horovod, small_disk, silent_server
):
    (small_disk / "filler").write_bytes(b"0" * ((1 << 20) - 4096))
    ill = run_doctor(
        *("--tracking-uri", silent_server, "--conf", f"spark.local.dir={small_disk}"),
        python=python_with_another_horovod,
        JAVA_HOME="/nowhere/java",
    )
    said = ill.problem("horovod")
    assert "built for torch 2.1.0+cu118, and this is torch 2." in said
    assert "undefined symbol: _ZN3c1013MessageLogger" in said
    assert "sparkdl-runner build-horovod" in said

    said = ill.problem("disk")
    assert f"{small_disk} (Spark's local files (spark.local.dir))" in said
    assert "No space left on device" in said
    assert "Make room" in said

    said = ill.problem("java")
    assert "JAVA_HOME is /nowhere/java" in said

    said = ill.problem("mlflow.server")
    assert f"{silent_server} does not answer: " in said
    assert "timed out" in said
    assert "Start it" in said


@pytest.mark.one_lane
def test_all_is_said_where_next_to_nothing_is_installed(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    import psutil

    site = next((tmp_path / "bare").glob("lib/python3.*/site-packages"))
    (site / "psutil").symlink_to(Path(psutil.__file__).parent)
    (site / "sparkdl_runner").symlink_to(Path(__file__).parents[3] / "sparkdl_runner")
    bare = run_doctor(python=tmp_path / "bare" / "bin" / "python", JAVA_HOME="", PATH="/nowhere")
    assert bare.exit_code == 1
    assert "pyspark is not installed" in bare.problem("spark.version")
    assert "There is no Java" in bare.problem("java")
    assert "PyTorch is not installed" in bare.problem("torch")
    assert "not installed" in bare.warning("horovod")


# ---- with a session --------------------------------------------------------------------------


def test_a_healthy_host():
    healthy = run_doctor("--np", "2", "--preflight")
    assert healthy.exit_code == 0, healthy.output
    assert healthy.report["format"] == 1
    assert healthy.report["num_proc"] == 2
    assert {finding["status"] for finding in healthy.report["findings"]} <= {"ok", "not checked"}
    for check in ("spark.start", "spark.slots", "network.driver", "versions", "horovod.build"):
        assert healthy.finding(check)["status"] == "ok"
    assert "allreduce" in healthy.finding("preflight")["found"]
    assert not running("sparkdl_runner.doctor.session")


def test_too_few_slots_and_no_tracking_server():
    asked = ("--np", "4", "--master", "local[2]")
    with socket.socket() as shut:
        shut.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{shut.getsockname()[1]}"
        ill = run_doctor(*asked, "--tracking-uri", gone)
    assert ill.exit_code == 1
    said = ill.problem("spark.slots")
    assert "4 ranks need 4 task slots at once, and the cluster has 2 (master local[2])" in said
    assert "local[4]" in said
    assert "Connection refused" in ill.problem("mlflow.server")


@pytest.mark.one_lane
def test_executors_start_a_python_without_this_package(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    # Spark's Python processes look in the driver's folder as well.
    ill = run_doctor("--backend", "torch", folder=tmp_path, PYSPARK_PYTHON=python)
    said = ill.problem("versions", where="executor")
    assert f"The executor's Python ({python}) cannot import sparkdl_runner" in said
    assert "Set PYSPARK_PYTHON" in said


@pytest.mark.one_lane
def test_executors_start_a_python_that_is_not_there_and_a_server_that_refuses_us(refusing_server):
    ill = run_doctor(PYSPARK_PYTHON="/nowhere/python3", MLFLOW_TRACKING_URI=refusing_server)
    said = ill.problem("spark.python")
    assert "cannot start /nowhere/python3" in said
    assert "Set PYSPARK_PYTHON" in said
    said = ill.problem("mlflow.server")
    assert "401" in said
    assert "MLFLOW_TRACKING_PASSWORD" in said
    assert "s3cret-word" not in ill.output


@pytest.mark.one_lane
@pytest.mark.one_lane
def test_executors_that_come_for_tasks_are_looked_at_and_meet_by_way_of_the_driver():
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
    }
    given = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    asked = ("--master", "local-cluster[2,1,1024]", "--backend", "torch", *given)
    found = run_doctor(*asked, SPARK_HOME=str(Path(pyspark.__file__).parent))
    assert found.finding("spark.slots")["found"].endswith("for which executors come with a run")
    assert found.finding("spark.executors")["found"] == "2 on 1 host(s) ran a stage"
    # Each has asked the other by the address that the driver told it.
    assert found.finding("network.executors")["status"] == "ok"


def test_the_report_for_a_person_is_aligned_and_ends_with_what_to_do():
    command = [sys.executable, "-m", "sparkdl_runner.doctor", "--backend", "torch"]
    asked = ["--conf", "spark.api.mode=connect"]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "\033" not in done.stdout
    assert "not checked: mend the problems before a run" in done.stdout
    lines = done.stdout.splitlines()
    problem = next(at for at, line in enumerate(lines) if line.startswith("PROBLEM"))
    assert lines[problem].startswith("PROBLEM spark.connect     spark.api.mode is connect")
    assert lines[problem + 1].startswith(" " * 26)
    assert max(map(len, lines)) <= 100
    assert any(line.startswith(" " * 26 + "-> Use one (on Databricks: dedicated") for line in lines)
