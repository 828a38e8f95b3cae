"""What the scripts for standalone, YARN and Kubernetes give to Spark, and what they refuse."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

CONF = Path(__file__).parents[3] / "conf"
SPARK = CONF / "spark"
CPU = SPARK / "spark-defaults.conf"
GPU = SPARK / "spark-defaults-gpu.conf"
SHARED = SPARK / "spark-defaults-gpu-shared.conf"
JOB = ["jobs/train.py", "--config", "my train.yaml"]

# Writes down what it is given, as words that end in a zero byte.
FAKE = """#!/bin/sh
printf '%s\\0' "$@" >"{folder}/argv"
while [ $# -gt 0 ]; do
    [ "$1" != --properties-file ] || cat "$2" "$2" >"{folder}/properties"
    shift
done
env -0 >"{folder}/environment"
"""


class Recorded:
    """What a script started, or why it did not."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: Path) -> None:
        self.code = done.returncode
        self.folder = folder
        self.said = done.stderr
        self.started = (folder / "argv").exists()
        if self.started:
            self.argv = (folder / "argv").read_text().split("\0")[:-1]
            words = (folder / "environment").read_text().split("\0")[:-1]
            self.environment = dict(word.split("=", 1) for word in words)

    def settings(self) -> dict[str, str]:
        """What came by ``--conf``; of two values the last, as Spark takes it."""
        pairs = zip(self.argv, self.argv[1:], strict=False)
        return dict(value.split("=", 1) for flag, value in pairs if flag == "--conf")

    def properties(self) -> list[str]:
        """The lines of the file of settings, which Spark's programs read more than once."""
        lines = (self.folder / "properties").read_text().splitlines()
        once = lines[: len(lines) // 2]
        assert lines == once * 2
        return once

    def option(self, name: str) -> str:
        return self.argv[self.argv.index(name) + 1]


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with a Spark that only writes down what it is given, and what scripts ask for."""
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    for name in ("spark-submit", "spark-class"):
        fake = tmp_path / "spark" / "bin" / name
        fake.write_text(FAKE.format(folder=tmp_path))
        fake.chmod(0o755)
    (tmp_path / "environment.tar.gz").touch()
    (tmp_path / "hadoop").mkdir()
    return tmp_path


@pytest.fixture
def secret(place) -> Path:
    file = place / "cluster.secret"
    done = subprocess.run(
        [CONF / "standalone" / "new_secret.sh", file], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{file}\n"
    return file


def run(place: Path, script: str, *arguments: str, **environment: str) -> Recorded:
    clean = {"PATH": os.environ["PATH"], "SPARK_HOME": str(place / "spark"), "HOME": str(place)}
    done = subprocess.run(
        [CONF / script, *arguments],
        cwd=place,
        env={name: value for name, value in {**clean, **environment}.items() if value},
        capture_output=True,
        text=True,
        check=False,
    )
    return Recorded(done, place)


def standalone(place: Path, **changed: str) -> dict[str, str]:
    return {
        "SPARK_LOCAL_IP": "10.0.0.1",
        "SECRET_FILE": str(place / "cluster.secret"),
        "MASTER_URL": "spark://10.0.0.1:7077",
        "ENVIRONMENT": "environment.tar.gz",
        **changed,
    }


def yarn(place: Path, **changed: str) -> dict[str, str]:
    return {
        "HADOOP_CONF_DIR": str(place / "hadoop"),
        "ENVIRONMENT": "environment.tar.gz",
        **changed,
    }


def kubernetes(place: Path, **changed: str) -> dict[str, str]:
    return {
        "MASTER_URL": "k8s://https://10.0.0.1:6443",
        "NAMESPACE": "training",
        "IMAGE": "registry.example.com:5000/sparkdl-runner:0.1.0",
        **changed,
    }


SETTINGS = {"standalone": standalone, "yarn": yarn, "kubernetes": kubernetes}


# ---- the secret of a standalone cluster -------------------------------------------------------


def test_a_secret_is_new_long_and_its_owners_alone(place, secret):
    assert secret.stat().st_mode & 0o777 == 0o600
    other = place / "other"
    subprocess.run([CONF / "standalone" / "new_secret.sh", other], check=True, capture_output=True)
    found = [
        re.search(r"^spark\.authenticate\.secret ([0-9a-f]{64})$", file.read_text(), re.MULTILINE)
        for file in (secret, other)
    ]
    assert all(found)
    assert found[0][1] != found[1][1]


def test_a_secret_that_is_there_is_not_overwritten(place, secret):
    before = secret.read_text()
    done = subprocess.run(
        [CONF / "standalone" / "new_secret.sh", secret], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert secret.read_text() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_that_others_can_read_is_refused(place, secret, mode):
    secret.chmod(mode)
    found = run(place, "standalone/start_master.sh", **standalone(place))
    assert not found.started
    assert f"is open to others than its owner (mode {mode:o})" in found.said


@pytest.mark.parametrize("script", ["start_master.sh", "start_worker.sh", "submit.sh"])
def test_the_secret_is_in_no_command_line_and_no_environment(place, secret, script):
    value = secret.read_text().split()[-1]
    arguments = JOB if script == "submit.sh" else []
    found = run(place, f"standalone/{script}", *arguments, **standalone(place))
    assert found.started, found.said
    assert value not in " ".join(found.argv)
    assert value not in str(found.environment)
    assert f"spark.authenticate.secret {value}" in found.properties()


def test_a_secret_of_the_settings_is_in_no_command_line_and_nothing_is_left_of_it(place, secret):
    defaults, temporary = place / "own.conf", place / "temporary"
    temporary.mkdir()
    # Without an end of its last line.
    defaults.write_text("spark.executor.cores 3\nspark.hadoop.fs.s3a.secret.key hunter2")
    changed = {"SPARK_DEFAULTS": str(defaults), "TMPDIR": str(temporary)}
    found = run(place, "standalone/submit.sh", *JOB, **standalone(place, **changed))
    assert found.started, found.said
    assert "hunter2" not in " ".join(found.argv)
    assert "hunter2" not in str(found.environment)
    assert "spark.hadoop.fs.s3a.secret.key hunter2" in found.properties()
    assert found.properties()[-1].startswith("spark.authenticate.secret ")
    assert not list(temporary.iterdir())


# ---- standalone -------------------------------------------------------------------------------


def test_the_master_listens_on_the_address_that_it_is_given(place, secret):
    found = run(place, "standalone/start_master.sh", **standalone(place))
    assert found.argv[0] == "org.apache.spark.deploy.master.Master"
    assert found.option("--host") == "10.0.0.1"
    # By this Spark's web UI listens there alone, too.
    assert found.environment["SPARK_LOCAL_IP"] == "10.0.0.1"
    assert found.environment["SPARK_CONF_DIR"] == str(SPARK)


def test_a_worker_goes_to_its_master_and_offers_no_gpus_unasked(place, secret):
    found = run(place, "standalone/start_worker.sh", **standalone(place))
    assert found.argv[0] == "org.apache.spark.deploy.worker.Worker"
    assert found.argv[-1] == "spark://10.0.0.1:7077"
    assert "gpu" not in found.environment.get("SPARK_WORKER_OPTS", "")


@pytest.mark.parametrize("number", [1, 2])
def test_a_worker_offers_all_the_gpus_that_are_found(place, secret, number):
    fake = place / "nvidia-smi"
    lines = "".join(f"GPU {i}: NVIDIA A10G (UUID: GPU-0c1d6c7{i})\n" for i in range(number))
    fake.write_text(f"#!/bin/sh\ncat <<END\n{lines}END\n")
    fake.chmod(0o755)
    path = f"{place}:{os.environ['PATH']}"
    found = run(place, "standalone/start_worker.sh", "--gpus", PATH=path, **standalone(place))
    assert found.started, found.said
    options = found.environment["SPARK_WORKER_OPTS"]
    assert f"-Dspark.worker.resource.gpu.amount={number} " in options
    script = re.search(r'"-Dspark\.worker\.resource\.gpu\.discoveryScript=([^"]+)"', options)[1]
    assert script == str(SPARK / "discover_gpus.sh")


def test_a_worker_that_has_no_gpus_to_offer_says_so(place, secret):
    fake = place / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho No devices found.\n")
    fake.chmod(0o755)
    path = f"{place}:{os.environ['PATH']}"
    found = run(place, "standalone/start_worker.sh", "--gpus", PATH=path, **standalone(place))
    assert not found.started
    assert "nvidia-smi -L lists 0" in found.said
    assert "--gpus was given, and this host has none to offer" in found.said


def test_a_job_takes_its_environment_its_settings_and_its_address_along(place, secret):
    found = run(place, "standalone/submit.sh", *JOB, **standalone(place))
    assert found.argv[-3:] == JOB
    assert found.option("--master") == "spark://10.0.0.1:7077"
    assert found.option("--archives") == "environment.tar.gz#environment"
    assert found.environment["PYSPARK_PYTHON"] == "./environment/bin/python"
    settings = found.settings()
    assert settings["spark.driver.host"] == "10.0.0.1"
    assert settings["spark.driver.bindAddress"] == "10.0.0.1"
    # Of the whole file, each with its value.
    lines = [line.split() for line in CPU.read_text().splitlines() if line.strip()]
    expected = {words[0]: words[1] for words in lines if not words[0].startswith("#")}
    assert len(expected) > 10
    given = [line.split() for line in found.properties()]
    assert expected.items() <= {words[0]: words[1] for words in given if len(words) > 1}.items()


def test_options_of_spark_submit_come_after_ours_and_so_win(place, secret):
    extra = ["--conf", "spark.executor.cores=1"]
    found = run(place, "standalone/submit.sh", *extra, *JOB, **standalone(place))
    assert found.settings()["spark.executor.cores"] == "1"


# ---- YARN -------------------------------------------------------------------------------------


def test_on_yarn_driver_and_executors_run_in_the_packed_environment(place):
    found = run(place, "yarn/submit.sh", *JOB, **yarn(place, YARN_QUEUE="training"))
    assert found.argv[-3:] == JOB
    assert found.option("--master") == "yarn"
    assert found.option("--deploy-mode") == "cluster"
    assert found.option("--queue") == "training"
    assert found.option("--properties-file") == str(CPU)
    assert found.option("--archives") == "environment.tar.gz#environment"
    settings = found.settings()
    assert settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == "./environment/bin/python"
    assert settings["spark.yarn.maxAppAttempts"] == "1"
    assert not [name for name in settings if "gpu" in name or "nodeLabel" in name]
    assert found.environment["SPARK_CONF_DIR"] == str(SPARK)


def test_in_client_mode_the_driver_keeps_the_python_of_this_shell(place):
    found = run(place, "yarn/submit.sh", *JOB, **yarn(place, DEPLOY_MODE="client"))
    assert found.option("--deploy-mode") == "client"
    assert found.environment["PYSPARK_PYTHON"] == "./environment/bin/python"
    assert found.environment["PYSPARK_DRIVER_PYTHON"] == "python3"
    settings = found.settings()
    assert "spark.yarn.appMasterEnv.PYSPARK_PYTHON" not in settings
    # It outlives a lost application master an hour.
    assert "spark.yarn.maxAppAttempts" not in settings
    assert settings["spark.yarn.am.attemptFailuresValidityInterval"] == "1h"


@pytest.mark.parametrize("defaults", [GPU, SHARED], ids=lambda path: path.stem)
def test_on_yarn_executors_with_gpus_get_the_discovery_script(place, defaults):
    found = run(
        place,
        "yarn/submit.sh",
        *JOB,
        **yarn(place, SPARK_DEFAULTS=str(defaults), NODE_LABEL="gpu"),
    )
    settings = found.settings()
    script = Path(settings["spark.yarn.dist.files"])
    assert os.access(script, os.X_OK)
    assert settings["spark.executor.resource.gpu.discoveryScript"] == f"./{script.name}"
    assert settings["spark.yarn.executor.nodeLabelExpression"] == "gpu"


def test_an_environment_may_be_on_the_clusters_own_file_system(place):
    found = run(place, "yarn/submit.sh", *JOB, **yarn(place, ENVIRONMENT="hdfs:///e.tar.gz"))
    assert found.option("--archives") == "hdfs:///e.tar.gz#environment"


# ---- Kubernetes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defaults", "template"),
    [(CPU, "executor-pod.yaml"), (GPU, "executor-pod-gpu.yaml"), (SHARED, "executor-pod-gpu.yaml")],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_on_kubernetes_pods_are_made_from_the_templates(place, defaults, template):
    found = run(
        place, "kubernetes/submit.sh", *JOB, **kubernetes(place, SPARK_DEFAULTS=str(defaults))
    )
    assert found.argv[-3:] == JOB
    assert found.option("--master") == "k8s://https://10.0.0.1:6443"
    assert found.option("--deploy-mode") == "cluster"
    assert found.option("--properties-file") == str(defaults)
    settings = found.settings()
    folder = CONF / "kubernetes"
    assert settings["spark.kubernetes.namespace"] == "training"
    assert settings["spark.kubernetes.container.image"].endswith("/sparkdl-runner:0.1.0")
    assert settings["spark.kubernetes.driver.podTemplateFile"] == str(folder / "driver-pod.yaml")
    assert settings["spark.kubernetes.executor.podTemplateFile"] == str(folder / template)
    on_gpus = template == "executor-pod-gpu.yaml"
    assert (settings.get("spark.executor.resource.gpu.vendor") == "nvidia.com") is on_gpus
    assert ("spark.executor.resource.gpu.discoveryScript" in settings) is on_gpus


# ---- what is refused, in a sentence -----------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "changed", "sentence"),
    [
        ("standalone", {"SPARK_LOCAL_IP": ""}, "set SPARK_LOCAL_IP to the address of this host"),
        ("standalone", {"SECRET_FILE": ""}, "set SECRET_FILE to the file with the"),
        ("standalone", {"SECRET_FILE": "gone"}, "cannot read SECRET_FILE, gone; "),
        ("standalone", {"MASTER_URL": "10.0.0.1:7077"}, "set MASTER_URL to the master's, spark:"),
        ("standalone", {"MASTER_URL": ""}, "set MASTER_URL to the master's, spark://HOST:7077"),
        ("standalone", {"ENVIRONMENT": ""}, "set ENVIRONMENT to the packed environment"),
        ("standalone", {"ENVIRONMENT": "gone.tar.gz"}, "(it is 'gone.tar.gz')"),
        ("standalone", {"SPARK_HOME": "/nowhere"}, "SPARK_HOME is /nowhere, which has no bin"),
        ("standalone", {"SPARK_DEFAULTS": "gone.conf"}, "cannot read SPARK_DEFAULTS, gone.conf"),
        ("yarn", {"HADOOP_CONF_DIR": ""}, "set HADOOP_CONF_DIR to the folder with"),
        ("yarn", {"HADOOP_CONF_DIR": "gone"}, "(it is 'gone')"),
        ("yarn", {"ENVIRONMENT": ""}, "set ENVIRONMENT to the packed environment"),
        ("yarn", {"DEPLOY_MODE": "clusters"}, "DEPLOY_MODE is 'clusters'; it can be cluster or"),
        ("yarn", {"SPARK_HOME": "/nowhere"}, "found no /nowhere/bin/spark-submit: set SPARK_HOME"),
        ("yarn", {"SPARK_DEFAULTS": "gone.conf"}, "cannot read SPARK_DEFAULTS, gone.conf"),
        ("kubernetes", {"MASTER_URL": ""}, "set MASTER_URL to k8s:// and the URL"),
        ("kubernetes", {"MASTER_URL": "https://10.0.0.1"}, "(it is 'https://10.0.0.1')"),
        ("kubernetes", {"NAMESPACE": ""}, "set NAMESPACE to the namespace"),
        ("kubernetes", {"IMAGE": ""}, "set IMAGE to the image built from"),
        ("kubernetes", {"IMAGE": "host:5000/name"}, "IMAGE is host:5000/name, without a tag"),
        ("kubernetes", {"IMAGE": "host/name:latest"}, "with a tag of its own"),
        ("kubernetes", {"SPARK_DEFAULTS": "gone.conf"}, "cannot read SPARK_DEFAULTS, gone.conf"),
    ],
)
def test_what_is_missing_is_told_in_a_sentence(place, secret, where, changed, sentence):
    found = run(place, f"{where}/submit.sh", *JOB, **SETTINGS[where](place, **changed))
    assert found.code == 2
    assert not found.started
    assert sentence in found.said
    assert found.said.startswith("submit.sh: ")
    assert found.said.count("\n") == 1


@pytest.mark.parametrize("where", sorted(SETTINGS))
def test_a_submission_of_nothing_is_told(place, secret, where):
    found = run(place, f"{where}/submit.sh", **SETTINGS[where](place))
    assert found.code == 2
    assert "name the script to run" in found.said
