"""Trainings on a real YARN: what a lost process, host and master cost, and what is refused.

TIMES says how often each fault is made, 1 unless it is set.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
from yarn import ADDRESSES, HEAD, HOSTS, SPARK_HOME, Yarn
from yarn_submission import ROOT, Submission, run_on_head

import quick_java
from engines import ENGINES
from every_backend import EVERY_BACKEND
from system.packed_forms import pack_environment

quick_java.use()
pytestmark = [pytest.mark.one_lane, pytest.mark.timeout(900)]
COUNT_STEPS = str(Path(__file__).with_name("count_steps.py"))
DRIVER_OF_CLUSTER_MODE = "org.apache.spark.deploy.yarn.ApplicationMaster"
MASTER = "org.apache.spark.deploy.yarn.ExecutorLauncher"
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
WORKER = "sparkdl_runner.launch.worker"
TIMES = int(os.environ.get("TIMES", "1"))


def why_not(engines: Path) -> str | None:
    """A line that says why no YARN can run here; None if one can."""
    jars = engines / "jars"
    found = list(jars.glob("hadoop-client-minicluster-*.jar"))
    return None if found else f"no jar of Hadoop's daemons is in {jars} ($ENGINES)"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory) -> Iterator[Yarn]:
    yarn = Yarn(tmp_path_factory.mktemp("yarn"), ENGINES / "jars")
    try:
        yarn.start()
        yield yarn
    finally:
        yarn.close()


@pytest.fixture(autouse=True)
def _hosts_are_there(yarn) -> Iterator[None]:
    yield
    for host in HOSTS:
        if host not in yarn.machines:
            yarn.power_on(host)


@pytest.fixture(scope="module")
def store(yarn) -> str:
    """The file of a tracking server that runs on the driver's machine."""
    return f"sqlite:///{yarn.folder / 'mlflow.db'}"


@pytest.fixture(scope="module")
def server(yarn, store) -> Iterator[str]:
    address = f"{ADDRESSES[HEAD]}:5000"
    log = yarn.folder / "mlflow.log"
    command = [sys.executable, "-m", "mlflow", "server", "--host", ADDRESSES[HEAD]]
    command += ["--port", "5000", "--workers", "1", "--backend-store-uri", store]
    command += ["--artifacts-destination", str(yarn.folder / "artifacts")]
    # Without this, the server starts eight more processes.
    alone = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = run_on_head(yarn, log, [*command, "--allowed-hosts", address], alone)
    deadline = time.monotonic() + 300
    while "Application startup complete" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    yield f"http://{address}"
    process.terminate()
    process.wait()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_training_in_client_mode(yarn, server, store, tmp_path, backend):
    job = [str(ROOT / "jobs" / "train.py"), "--example", "digits", "--num-proc", "2"]
    job += ["--backend", backend, "--cache-url", f"file://{tmp_path}/cache"]
    job += ["--tracking", f"tracking_uri={server}", f"experiment=digits-{backend}"]
    with Submission(yarn, tmp_path / "log", job) as submission:
        assert submission.wait() == 0, submission.output[-6000:]
    (run,) = runs_of(store, f"digits-{backend}")
    assert run.info.status == "FINISHED"
    assert run.data.params["world_size"] == "2"


SCRIPT = """
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", int(total), "has", sys.argv[1:])
"""


def test_a_script_with_arguments(yarn, server, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "train.yaml").write_text(
        f"script: {tmp_path}/script.py\nargs: [--word, two words]\nnum_proc: 2\n"
        f"tracking: {{tracking_uri: '{server}', experiment: script}}\n"
    )
    job = [str(ROOT / "jobs" / "train.py"), "--config", str(tmp_path / "train.yaml")]
    with Submission(yarn, tmp_path / "log", job) as submission:
        told = submission.succeed()
    for rank in (0, 1):
        assert f"rank {rank} of 2 has ['--word', 'two words']" in told


def test_two_trials_at_a_time(yarn, server, store, tmp_path):
    (tmp_path / "tune.yaml").write_text(
        "example: digits\nnum_proc: 1\nbackend: torch\nhyperparameters: {epochs: 1}\n"
        f"tracking: {{tracking_uri: '{server}', experiment: tune}}\n"
        f"cache_url: file://{tmp_path}/cache\n"
        "tune: {metric: accuracy, trials: 2, search_space: {batch_size: {choices: [16, 32]}}}\n"
    )
    job = [str(ROOT / "jobs" / "tune.py"), "--config", str(tmp_path / "tune.yaml")]
    with Submission(yarn, tmp_path / "log", job) as submission:
        assert "2 trials, 2 at a time" in submission.succeed()
    trials = [run for run in runs_of(store, "tune") if "mlflow.parentRunId" in run.data.tags]
    assert [run.info.status for run in trials] == ["FINISHED"] * 2
    assert max(run.info.start_time for run in trials) < min(run.info.end_time for run in trials)


def test_the_estimator(yarn, tmp_path):
    job = [str(Path(__file__).with_name("estimate.py")), f"file://{tmp_path}/cache"]
    with Submission(yarn, tmp_path / "log", job) as submission:
        assert "all sums are predicted" in submission.succeed()


def test_the_doctor_says_what_executors_lack(yarn, tmp_path):
    command = [sys.executable, "-m", "sparkdl_runner.doctor", "--master", "yarn", "--np", "2"]
    command += ["--backend", "torch"]
    for name, size in SMALL.items():
        command += ["--conf", f"{name}={size}"]
    variables = {"PYSPARK_PYTHON": "/usr/bin/python3", "PYTHONPATH": ""}
    log = tmp_path / "log"
    assert run_on_head(yarn, log, command, variables).wait(300) == 1
    told = " ".join(log.read_text().split())
    assert "The executor's Python (/usr/bin/python3) cannot import sparkdl_runner" in told


def test_the_doctor_passes_with_the_environment(yarn, server, tmp_path, environment):
    command = [sys.executable, "-m", "sparkdl_runner.doctor", "--master", "yarn", "--np", "2"]
    command += ["--archives", f"{environment['ENVIRONMENT']}#environment"]
    command += ["--conf", f"spark.yarn.archive={environment['SPARK_ARCHIVE']}"]
    command += ["--tracking-uri", server, "--folder", f"{yarn.hdfs}/checkpoints"]
    for name, size in SMALL.items():
        command += ["--conf", f"{name}={size}"]
    variables = {"PYSPARK_PYTHON": "./environment/bin/python", "PYTHONPATH": ""}
    log = tmp_path / "log"
    assert run_on_head(yarn, log, command, variables).wait(600) == 0, log.read_text()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_the_command_of_the_page_in_cluster_mode(
    yarn, server, store, tmp_path, environment, backend
):
    """HDFS has Spark's jars, the Python environment, and by default what is converted."""
    defaults = tmp_path / "spark-defaults.conf"
    lines = (ROOT / "conf" / "spark" / "spark-defaults.conf").read_text().splitlines()
    kept = [line for line in lines if line.split()[:1] not in [[name] for name in SMALL]]
    defaults.write_text("\n".join([*kept, *(f"{name} {size}" for name, size in SMALL.items())]))
    (tmp_path / "train.yaml").write_text(
        f"example: digits\nnum_proc: 2\nbackend: {backend}\n"
        f"tracking: {{tracking_uri: '{server}', experiment: cluster-{backend}}}\n"
    )
    command = [str(ROOT / "conf" / "yarn" / "submit.sh"), "--files", "train.yaml"]
    command += [str(ROOT / "jobs" / "train.py"), "--config", "train.yaml"]
    variables = {**environment, "SPARK_DEFAULTS": str(defaults), "PYTHONPATH": ""}
    done = run_on_head(yarn, tmp_path / "log", command, variables)
    code = done.wait(600)
    assert code == 0, (tmp_path / "log").read_text()[-6000:]
    (run,) = runs_of(store, f"cluster-{backend}")
    assert run.info.status == "FINISHED"
    assert "Neither spark.yarn.jars nor" not in (tmp_path / "log").read_text()


# For a small machine.
SMALL = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "1500m",
    "spark.driver.memory": "700m",
    "spark.driver.memoryOverhead": "1500m",
}


@pytest.fixture(scope="module")
def environment(yarn, tmp_path_factory) -> dict[str, str]:
    """Where HDFS has Spark's jars and the packed environment, for conf/yarn/submit.sh."""
    archive = pack_environment(tmp_path_factory.mktemp("environment"))
    places = {
        "SPARK_ARCHIVE": f"{yarn.hdfs}/shared/spark-jars.zip",
        "ENVIRONMENT": f"{yarn.hdfs}/shared/environment.tar.gz",
    }
    put_jars = str(ROOT / "conf" / "yarn" / "put_jars.sh")
    shell = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.hadoop.fs.FsShell"]
    for number, command in enumerate(
        (
            [put_jars, places["SPARK_ARCHIVE"]],
            [*shell, "-put", str(archive), places["ENVIRONMENT"]],
        )
    ):
        log = yarn.folder / f"put-{number}.log"
        assert run_on_head(yarn, log, command, {}).wait(300) == 0, log.read_text()
    return places


def runs_of(store: str, experiment: str) -> list:
    client = mlflow.MlflowClient(tracking_uri=store)
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id]))


# ---- a training that loses something -----------------------------------------------------------


KNOWN = re.compile("Restarting all ranks|The training goes on")


def kill(yarn: Yarn, word: str, *, most: int = 1) -> str:
    """Ends processes of containers. Returns the machine of the last one."""
    found = [(name, one) for name, one in yarn.processes(word) if name != HEAD]
    assert found, f"there is no {word}"
    for _, process in found[:most]:
        process.kill()
    return found[0][0]


def power_off_host_of_master(yarn: Yarn) -> None:
    ((name, _),) = [one for one in yarn.processes(MASTER) if one[1].name() == "java"]
    yarn.power_off(name)


def power_off_other_host(yarn: Yarn) -> None:
    ((name, _),) = [one for one in yarn.processes(MASTER) if one[1].name() == "java"]
    yarn.power_off(next(host for host in HOSTS if host != name))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda yarn: kill(yarn, WORKER), "SIGKILL"),
        (lambda yarn: kill(yarn, EXECUTOR), ""),
        (power_off_other_host, "has vanished: its slots do not count any more"),
        (power_off_host_of_master, "which has vanished: YARN was asked for another"),
        (lambda yarn: kill(yarn, MASTER, most=9), ""),
    ],
    ids=["rank killed", "executor killed", "host dead", "host of the master dead", "master killed"],
)
@pytest.mark.parametrize("_time", range(TIMES))
def test_the_training_goes_on_from_its_last_checkpoint(
    yarn: Yarn,
    server: str,
    store: str,
    tmp_path: Path,
    report: Callable[[str], None],
    fault: Callable[[Yarn], None],
    told: str,
    _time: int,
) -> None:
    experiment = tmp_path.name
    job = [COUNT_STEPS, "--folder", str(tmp_path / "checkpoints")]
    job += ["--tracking-uri", server, "--experiment", experiment, "--steps", "100"]
    with Submission(yarn, tmp_path / "log", job) as submission:
        submission.wait_until(lambda: submission.steps()[-1:] > [(25, 0.0)], "step 25")
        before = submission.steps()[-1][0]
        lost_at = time.time()
        fault(yarn)
        submission.wait_until(lambda: KNOWN.search(submission.output), "a word of the loss")
        known_at = time.time()
        assert submission.wait() == 0, submission.output[-6000:]
        saved, began_at = submission.begins()[-1]
        steps = [(step, at) for step, at in submission.steps() if at >= began_at]
    assert began_at > lost_at
    first, at = steps[0]
    report(
        f"known after {known_at - lost_at:.0f} s, on after {at - lost_at:.0f} s at step {first}, "
        f"lost at {before}"
    )
    assert first == saved + 1 > before - 10
    assert [step for step, _ in steps] == list(range(first, 101))
    assert told in submission.output
    (run,) = runs_of(store, experiment)
    assert run.info.status == "FINISHED"
    history = mlflow.MlflowClient(tracking_uri=store).get_metric_history(run.info.run_id, "counted")
    assert {one.step for one in history} == set(range(1, 101))
    assert nothing_is_left(yarn)


@pytest.fixture
def report(capsys, request) -> Callable[[str], None]:
    def show(what: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {what}")

    return show


def nothing_is_left(yarn: Yarn) -> bool:
    """Whether no container runs any more, or soon none does."""
    deadline = time.monotonic() + 300
    while any(yarn.processes(word) for word in (MASTER, EXECUTOR, WORKER)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_a_container_over_its_memory_is_named_and_the_training_goes_on(
    yarn, server, store, tmp_path
):
    job = [COUNT_STEPS, "--folder", str(tmp_path / "checkpoints"), "--hoard-mb", "2500"]
    job += ["--tracking-uri", server, "--experiment", "memory", "--steps", "40"]
    with Submission(yarn, tmp_path / "log", job) as submission:
        told = submission.succeed()
    lost = (
        r"Rank 1 of 2 on host \w+ is lost: .*exceeding physical memory limits.*Restarting all ranks"
    )
    assert re.search(lost, told)
    assert "the last attempt went on from 10" in told
    (run,) = runs_of(store, "memory")
    assert run.info.status == "FINISHED"


def test_all_ends_with_the_driver(yarn, server, tmp_path):
    job = [COUNT_STEPS, "--folder", str(tmp_path / "checkpoints")]
    job += ["--tracking-uri", server, "--experiment", "driver", "--steps", "1000"]
    with Submission(yarn, tmp_path / "log", job) as submission:
        submission.wait_until(lambda: submission.steps()[-1:] > [(25, 0.0)], "step 25")
        for _, process in yarn.processes("org.apache.spark.deploy.SparkSubmit"):
            process.kill()
        assert nothing_is_left(yarn)


def test_who_submits_again_under_its_name_goes_on_in_the_same_run(
    yarn, server, store, tmp_path, report
):
    """In cluster mode the driver is a container, and YARN is told not to start it again."""
    job = [COUNT_STEPS, "--folder", f"file://{tmp_path}/checkpoints", "--name", "counting"]
    job += ["--tracking-uri", server, "--experiment", "named", "--steps", "100"]
    settings = {"spark.yarn.maxAppAttempts": "1"}
    with Submission(yarn, tmp_path / "1", job, mode="cluster", settings=settings) as submission:
        submission.wait_until(lambda: 25 in counted(store, "named"), "step 25")
        for _, process in yarn.processes(DRIVER_OF_CLUSTER_MODE):
            process.kill()
        assert submission.wait() != 0
    assert nothing_is_left(yarn)
    begun_at = time.monotonic()
    with Submission(yarn, tmp_path / "2", job, mode="cluster", settings=settings) as submission:
        assert submission.wait() == 0, submission.output[-6000:]
    report(f"submitted again, it was done after {time.monotonic() - begun_at:.0f} s")
    (run,) = runs_of(store, "named")
    assert run.info.status == "FINISHED"
    steps = counted(store, "named")
    assert set(steps) == set(range(1, 101))
    assert steps.count(1) == steps.count(20) == 1, "it went on from its last checkpoint"


def counted(store: str, experiment: str) -> list[int]:
    """The steps that the only run of an experiment has logged."""
    client = mlflow.MlflowClient(tracking_uri=store)
    if client.get_experiment_by_name(experiment) is None:
        return []
    found = [
        client.get_metric_history(one.info.run_id, "counted") for one in runs_of(store, experiment)
    ]
    return sorted(one.step for history in found for one in history)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"spark.yarn.queue": "nowhere"}, "unknown queue: nowhere"),
        (
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.shuffleTracking.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "1",
                "spark.executor.instances": "1",
            },
            "spark.dynamicAllocation.maxExecutors=1 allows 1",
        ),
        (
            {"spark.executor.instances": "1"},
            "2 ranks need 2 task slots at once, and the cluster has 1",
        ),
        (
            {
                "spark.yarn.queue": "small",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "5s",
            },
            "2 ranks need 2 task slots at once, and the cluster has ",
        ),
    ],
    ids=[
        "no such queue",
        "few executors",
        "more ranks than slots",
        "queue without room",
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(yarn, server, tmp_path, settings, told):
    job = [COUNT_STEPS, "--folder", str(tmp_path / "checkpoints")]
    job += ["--tracking-uri", server, "--experiment", "refused", "--slot-wait-seconds", "5"]
    with Submission(yarn, tmp_path / "log", job, settings=settings) as submission:
        assert submission.wait() != 0
    assert told in submission.output


def test_executors_come_for_ranks_under_dynamic_allocation(yarn, server, tmp_path):
    job = [COUNT_STEPS, "--folder", str(tmp_path / "checkpoints"), "--steps", "5"]
    job += ["--tracking-uri", server, "--experiment", "dynamic"]
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.initialExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
    }
    with Submission(yarn, tmp_path / "log", job, settings=settings) as submission:
        told = submission.succeed()
    assert "the ranks are ordinary tasks that wait for one another" in told
    assert "2 ranks on 2 hosts started" in told


def test_executors_that_have_a_container_are_waited_for(yarn, server, tmp_path):
    """However short the wait for slots. Here a JVM starts once somebody reads its log."""
    job = [COUNT_STEPS, "--folder", str(tmp_path / "checkpoints"), "--slot-wait-seconds", "0.5"]
    job += ["--tracking-uri", server, "--experiment", "slow", "--steps", "1"]
    log = tmp_path / "java-log"
    os.mkfifo(log)
    settings = {
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
        "spark.executor.extraJavaOptions": f"-Xlog:all=error:file={log}",
    }
    told = re.compile("[12] executors? ha(s|ve) been given a place")
    with Submission(yarn, tmp_path / "log", job, settings=settings) as submission:
        submission.wait_until(lambda: told.search(submission.output), "wait for executors")
        with log.open():
            submission.succeed()


def test_a_folder_that_hosts_do_not_share_is_told_before_the_conversion(yarn, server, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    for host in HOSTS:
        yarn.machines[host].run("mount", "-t", "tmpfs", "tmpfs", cache)
    job = [str(ROOT / "jobs" / "train.py"), "--example", "digits", "--num-proc", "2"]
    job += ["--cache-url", f"file://{cache}", "--tracking", f"tracking_uri={server}"]
    with Submission(yarn, tmp_path / "log", job) as submission:
        assert submission.wait() != 0
    for host in HOSTS:
        yarn.machines[host].run("umount", cache)
    told = rf"train: data\.train_data: file://{cache}/\S+ is another folder on each host"
    assert re.search(told, submission.output)
    assert "Traceback" not in submission.output  # Spark's JVM may say that a connection ended.
