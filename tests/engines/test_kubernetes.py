"""Trainings on a real Kubernetes, as ``conf/kubernetes`` submits them, and the faults they survive.

TIMES says how often each fault is made, 1 unless it is set.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pyspark
import pytest
from kubernetes_cluster import CONTROL, IMAGE, TOKEN, Kubernetes, why_not  # noqa: F401

from engines import ENGINES, ROOT
from every_backend import EVERY_BACKEND

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

CONF = ROOT / "conf" / "kubernetes"
NAMESPACE = "training"
MLFLOW = f"http://{CONTROL}:5000"
SHARED = "/mnt/shared"
MINUTES = 5.0
TIMES = int(os.environ.get("TIMES", "1"))
# From the moment at which the run knows that a node is dead.
GOES_ON_SECONDS = 60.0
IN_PODS = "local:///opt/sparkdl-runner/jobs/train.py"
WORKER = "sparkdl_runner.launch.worker"


def wait_for(holds: Callable[[], object], what: str, minutes: float = MINUTES) -> None:
    deadline = time.monotonic() + minutes * 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with Kubernetes(ENGINES) as cluster:
        for name in ("stepping.py", "one_session.py", "estimate.py"):
            shutil.copy(Path(__file__).with_name(name), cluster.shared)
        cluster.control.run("mount", "-t", "tmpfs", "none", "/mnt")
        cluster.control.run("mkdir", SHARED)
        cluster.control.run("mount", "--bind", cluster.shared, SHARED)
        cluster.kubectl("create", "namespace", NAMESPACE)
        for name in ("rbac.yaml", "network-policy.yaml"):
            cluster.kubectl("apply", f"--namespace={NAMESPACE}", f"--filename={CONF / name}")
        store = ("--backend-store-uri", f"sqlite:///{cluster.folder}/mlflow.db")
        files = ("--artifacts-destination", cluster.folder / "artifacts")
        cluster.control.start(
            "mlflow",
            *(sys.executable, "-m", "mlflow", "server", "--host", CONTROL, "--port", "5000"),
            *("--workers", "1", "--allowed-hosts", f"{CONTROL}:*", *store, *files),
            environment={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )
        log = cluster.logs / "mlflow.log"
        wait_for(lambda: "Application startup complete" in log.read_text(), "MLflow")
        yield cluster


class Submitted:
    """A job that was submitted as ``conf/README.md`` says; used as a context, it is gone then.

    Args:
        cluster: Where.
        name: The job's, and of its driver's pod and its folder.
        job: The arguments of ``jobs/train.py``.
        options: Of ``spark-submit``.
        script: The job's file, in the pods if it begins with ``local:``.
    """

    def __init__(
        self,
        cluster: Kubernetes,
        name: str,
        *job: str,
        options: tuple[str, ...] = (),
        script: str = IN_PODS,
    ) -> None:
        self.cluster = cluster
        self.name = name
        # A folder of the pods' user alone, as a volume of theirs would be.
        self.folder = cluster.shared / name
        self.folder.mkdir(exist_ok=True)
        os.chown(self.folder, 185, 185)
        settings = {
            "executor.cores": "1",
            "executor.memory": "600m",
            "executor.memoryOverhead": "1500m",
            "driver.memory": "700m",
            "driver.memoryOverhead": "1200m",
            "kubernetes.executor.request.cores": "0.2",
            "kubernetes.driver.request.cores": "0.2",
            "kubernetes.executor.podNamePrefix": name,
            "kubernetes.driver.node.selector.kubernetes.io/hostname": "node-1",
            "executorEnv.OMP_NUM_THREADS": "1",
        }
        if script.startswith("local:"):
            settings["kubernetes.driver.pod.name"] = name
        for role in ("driver", "executor"):
            volume = f"kubernetes.{role}.volumes.hostPath.shared"
            settings[f"{volume}.mount.path"] = SHARED
            settings[f"{volume}.options.path"] = str(cluster.shared)
        for account in ("authenticate.submission", "authenticate"):
            settings[f"kubernetes.{account}.oauthToken"] = TOKEN
            settings[f"kubernetes.{account}.caCertFile"] = str(cluster.authority)
        given = [
            word for key, value in settings.items() for word in ("--conf", f"spark.{key}={value}")
        ]
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SPARK_", "PYSPARK_", "MLFLOW", "PYTHON"))
        } | {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "MASTER_URL": f"k8s://{cluster.url}",
            "NAMESPACE": NAMESPACE,
            "IMAGE": IMAGE,
        }
        # A driver that is no pod is root, and its folders are for the pods' user as well.
        umask = ("sh", "-c", 'umask 0; exec "$@"', "sh")
        submit = (*umask, CONF / "submit.sh", "--name", name, *given, *options, script)
        tracked = ("--tracking", f"experiment={name}", f"tracking_uri={MLFLOW}")
        self._process = cluster.control.start(
            name, *submit, *job, *tracked, environment=environment
        )

    def __enter__(self) -> Submitted:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if left := [pod["metadata"]["name"] for pod in self.pods()]:
            by_force = (f"--namespace={NAMESPACE}", "--grace-period=0", "--force")
            self.cluster.kubectl("delete", "pods", "--ignore-not-found", *by_force, *left)

    def output(self, *options: str) -> str:
        """The driver's log."""
        if not any(pod["metadata"]["name"] == self.name for pod in self.pods()):
            return (self.cluster.logs / f"{self.name}.log").read_text()
        return self.cluster.kubectl("logs", f"--namespace={NAMESPACE}", *options, self.name)

    def pods(self, *options: str) -> list[dict]:
        """Its own, as their names tell."""
        listed = self.cluster.get("pods", f"--namespace={NAMESPACE}", *options)
        return [pod for pod in listed if pod["metadata"]["name"].startswith(self.name)]

    def executors(self, node: str | None = None) -> list[str]:
        """The names of its executors' pods that run, of one node or all."""
        return [
            pod["metadata"]["name"]
            for pod in self.pods("--selector=spark-role=executor")
            if node in (None, pod["spec"].get("nodeName")) and pod["status"]["phase"] == "Running"
        ]

    def processes(self, word: str) -> list[psutil.Process]:
        """Those of its pods that have a word in their command line."""
        return self.cluster.processes(word, self.pods())

    def end(self) -> str:
        """Waits for its end, good or bad. Returns the driver's log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(MINUTES * 60)
        return self.output()

    def succeed(self) -> dict:
        """Waits for its good end. Returns the job's last line."""
        told = self.end()
        assert self._process.poll() == 0, told[-6000:]
        ends = [line for line in told.splitlines() if line.startswith("{")]
        assert ends, told[-6000:]
        return json.loads(ends[-1])

    def runs(self) -> list[str]:
        """The states of its MLflow runs."""
        named = "SELECT status FROM runs JOIN experiments e USING (experiment_id) WHERE e.name = ?"
        with contextlib.closing(sqlite3.connect(self.cluster.folder / "mlflow.db")) as database:
            return [status for (status,) in database.execute(named, [self.name])]


def digits(backend: str) -> tuple[str, ...]:
    numbers = ("--num-proc", "2", "--backend", backend, "--hyperparameters", "epochs=3")
    return ("--example", "digits", *numbers)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_training_in_cluster_mode(cluster, backend):
    name = f"digits-{backend}"
    job = (*digits(backend), "--cache-url", f"file://{SHARED}/{name}")
    with Submitted(cluster, name, *job) as submitted:
        assert submitted.succeed()["returned"]["accuracy"] > 0.8
        output = submitted.output()
        assert "2 ranks on 2 hosts started" in output
        assert submitted.runs() == ["FINISHED"]
        assert [pod["metadata"]["name"] for pod in submitted.pods()] == [name]
        # What says nothing that a user could act on.
        for noise in ("hostname of the client socket", "takes no filter", "Skip current round"):
            assert noise not in output


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_training_in_client_mode(cluster, backend):
    """The driver is no pod, but a process of a host that pods reach."""
    name = f"client-{backend}"
    job = (*digits(backend), "--cache-url", f"file://{SHARED}/{name}")
    here = {
        "driver.host": CONTROL,
        "pyspark.driver.python": sys.executable,
        "hadoop.fs.permissions.umask-mode": "000",
    }
    options = ["--deploy-mode", "client"]
    for key, value in here.items():
        options += ["--conf", f"spark.{key}={value}"]
    script = str(ROOT / "jobs" / "train.py")
    with Submitted(cluster, name, *job, options=tuple(options), script=script) as submitted:
        assert submitted.succeed()["returned"]["accuracy"] > 0.8
        assert "2 ranks on 2 hosts started" in submitted.output()
        assert submitted.runs() == ["FINISHED"]
        wait_for(lambda: not submitted.pods(), "pods are left")


class Stepping(Submitted):
    """A long training; see ``stepping.py``."""

    def __init__(
        self,
        cluster: Kubernetes,
        name: str,
        backend: str,
        *runner: str,
        options: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            *(cluster, name, "--function", f"{SHARED}/stepping.py:train", "--backend", backend),
            *("--name", name, "--num-proc", "2"),
            *("--checkpoint-url", f"{SHARED}/{name}/checkpoints"),
            *("--hyperparameters", f"folder={SHARED}/{name}", f"backend={backend}"),
            *("--run-config", "max_restarts=100", *runner),
            options=options,
        )

    def steps(self) -> list[tuple[float, int, int, int]]:
        """Of each step the time, the attempt, the step where that began, and its number."""
        path = self.folder / "steps"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(float(at), int(a), int(b), int(c)) for at, a, b, c in map(str.split, lines)]

    def wait_for(self, holds: Callable[[], object], what: str) -> None:
        """Waits until something holds, while the training runs."""
        try:
            wait_for(lambda: holds() or self._process.poll() is not None, what)
            assert self._process.poll() is None, "the training has ended"
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.output()[-6000:]}") from None

    def wait_until_steady(self) -> None:
        """Waits until the newest attempt has saved a checkpoint of its own, and goes on."""

        def is_steady() -> bool:
            steps = self.steps()
            return bool(steps) and steps[-1][3] >= steps[-1][2] + 30

        self.wait_for(is_steady, "no steps")

    def saved(self) -> int:
        """The step of the newest checkpoint."""
        manifests = self.folder.glob("checkpoints/**/step-*/**/manifest.json")
        found = [re.search(r"/step-(\d+)/", str(path)) for path in manifests]
        return max((int(one[1]) for one in found if one), default=0)

    def survives(self, fault: Callable[[], object]) -> Survival:
        """Makes a fault and waits until steps go on."""
        self.wait_until_steady()
        before, saved, began = self.steps()[-1], self.saved(), time.time()
        fault()

        def next_steps() -> list[tuple[float, int, int, int]]:
            return [one for one in self.steps() if one[1] > before[1]]

        self.wait_for(next_steps, "no step after the fault")
        on = next_steps()[0]
        last = [one for one in self.steps() if one[1] == before[1]][-1]
        words = re.compile(r"^(\S+) .*(Restarting all ranks|The training goes on)", re.MULTILINE)
        known = [_seconds(at) for at, _ in words.findall(self.output("--timestamps"))]
        return Survival(
            known=min((at for at in known if at > began), default=began) - began,
            on=on[0] - began,
            last=last[3],
            saved=saved,
            resumed=on[2],
        )


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", moment)).timestamp()


class Survival:
    """What a fault cost."""

    def __init__(self, *, known: float, on: float, last: int, saved: int, resumed: int) -> None:
        self.known, self.on, self.last, self.saved, self.resumed = known, on, last, saved, resumed

    def __str__(self) -> str:
        return (
            f"known after {self.known:.0f} s, on after {self.on:.0f} s; checkpoint before "
            f"{self.saved}, last step {self.last}, went on after {self.resumed}"
        )


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_all_ends_with_the_drivers_pod_and_goes_on_when_submitted_again(cluster, capsys, backend):
    name = f"driver-{backend}"
    with Stepping(cluster, name, backend) as stepping:
        stepping.wait_until_steady()
        workers = stepping.processes(WORKER)
        cluster.kubectl("delete", "pod", f"--namespace={NAMESPACE}", "--wait=false", name)
        deleted = time.monotonic()
        wait_for(lambda: not any(one.is_running() for one in workers), "workers are left")
        ranks = time.monotonic() - deleted
        wait_for(lambda: not stepping.pods(), "pods are left")
        pods = time.monotonic() - deleted
        assert stepping.runs() == ["KILLED"]
    saved, last = stepping.saved(), stepping.steps()[-1]
    # Executors that have a place are waited for, however short the wait for slots.
    soon = ("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=1s")
    submitted = time.time()
    with Stepping(cluster, name, backend, "slot_wait_seconds=1", options=soon) as stepping:
        stepping.wait_for(lambda: stepping.steps()[-1] != last, "no step")
        on = next(one for one in stepping.steps() if one[0] > submitted)
        (stepping.folder / "enough").touch()
        stepping.succeed()
        assert "executors have been given a place" in stepping.output()
        assert stepping.runs() == ["FINISHED"]
    with capsys.disabled():
        print(
            f"\nthe driver's pod deleted: ranks gone after {ranks:.0f} s, pods {pods:.0f} s; on "
            f"{on[0] - submitted:.0f} s after it was submitted again; checkpoint before {saved}, "
            f"last step {last[3]}, went on after {on[2]}"
        )
    assert saved <= on[2] <= last[3]


SCRIPT = """
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", int(total), "has", sys.argv[1:])
"""
TUNE = """
example: digits
num_proc: 1
backend: torch
hyperparameters: {epochs: 1}
tune: {metric: accuracy, trials: 2, search_space: {batch_size: {choices: [16, 32]}}}
"""


def test_what_one_session_runs_and_what_is_refused(cluster):
    """At the same time: another with dynamic allocation of too few executors."""
    name, folder = "session", f"{SHARED}/session"
    dynamic = ("dynamic", *digits("torch"), "--cache-url", f"file://{SHARED}/dynamic")
    settings = ("enabled=true", "shuffleTracking.enabled=true", "maxExecutors=1")
    options = ["--conf", "spark.executor.instances=1"]  # Spark refuses more than the most.
    for setting in settings:
        options += ["--conf", f"spark.dynamicAllocation.{setting}"]
    session = Submitted(cluster, name, folder, script=f"local://{SHARED}/one_session.py")
    with session, Submitted(cluster, *dynamic, options=tuple(options)) as refused:
        (session.folder / "said.py").write_text(SCRIPT)
        (session.folder / "train.yaml").write_text(
            f"script: {folder}/said.py\nargs: [--word, two words]\nnum_proc: 2\n"
        )
        (session.folder / "tune.yaml").write_text(f"{TUNE}cache_url: file://{folder}/cache\n")
        assert "spark.dynamicAllocation.maxExecutors=1 allows 1" in refused.end()
        told = session.end()
    for words in (
        "3 ranks need 3 task slots at once, and the cluster has 2",
        "rank 0 of 2 has ['--word', 'two words']",
        "rank 1 of 2 has ['--word', 'two words']",
        "train ends with 0",
        "2 trials, 2 at a time",
        "tune ends with 0",
        "all sums are predicted",
    ):
        assert words in told, told[-6000:]
    assert "atplotlib" not in told


@pytest.fixture(scope="module", params=EVERY_BACKEND)
def stepping(request, cluster) -> Iterator[Stepping]:
    """One training for all faults: at its end it has one MLflow run, and no pod is left."""
    with Stepping(cluster, f"stepping-{request.param}", request.param) as stepping:
        yield stepping
        (stepping.folder / "enough").touch()
        last = stepping.succeed()["returned"]
        assert last == stepping.steps()[-1][3]
        assert stepping.runs() == ["FINISHED"]
        assert [pod["metadata"]["name"] for pod in stepping.pods()] == [stepping.name]


@pytest.fixture
def report(capsys, request) -> Callable[[Survival], None]:
    def show(survival: Survival) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {survival}")
        # No step is lost beyond the last checkpoint.
        assert survival.saved <= survival.resumed <= survival.last

    return show


@pytest.mark.parametrize("_time", range(TIMES))
def test_a_killed_rank(stepping, report, _time):
    def kill() -> None:
        stepping.processes(WORKER)[0].kill()

    report(stepping.survives(kill))


@pytest.mark.parametrize("_time", range(TIMES))
def test_a_killed_jvm(stepping, report, _time):
    def kill() -> None:
        executors = stepping.processes("KubernetesExecutorBackend")
        next(one for one in executors if one.name() == "java").kill()

    report(stepping.survives(kill))


@pytest.mark.parametrize("_time", range(TIMES))
def test_a_deleted_pod_costs_no_step(stepping, report, _time):
    delete = ("delete", "pod", f"--namespace={NAMESPACE}", "--wait=false")
    survival = stepping.survives(lambda: stepping.cluster.kubectl(*delete, stepping.executors()[0]))
    report(survival)
    assert survival.resumed == survival.last


@pytest.mark.parametrize("_time", range(TIMES))
def test_a_pod_deleted_by_force(stepping, report, _time):
    delete = ("delete", "pod", f"--namespace={NAMESPACE}", "--grace-period=0", "--force")
    report(stepping.survives(lambda: stepping.cluster.kubectl(*delete, stepping.executors()[0])))


@pytest.mark.parametrize("_time", range(TIMES))
def test_a_dead_node(stepping, report, _time):
    cluster = stepping.cluster
    stepping.wait_until_steady()
    if not stepping.executors("node-2"):
        attempt = stepping.steps()[-1][1]
        cluster.kubectl("cordon", "node-1")
        moved = stepping.executors()[0]
        cluster.kubectl("delete", "pod", f"--namespace={NAMESPACE}", moved)
        stepping.wait_for(lambda: stepping.steps()[-1][1] > attempt, "no step on node-2")
        cluster.kubectl("uncordon", "node-1")
        stepping.wait_until_steady()
    lost = stepping.executors("node-2")
    try:
        survival = stepping.survives(lambda: cluster.lose("node-2"))
        report(survival)
        assert survival.on - survival.known < GOES_ON_SECONDS
        # Nothing waits for the node to come back.
        assert not set(lost) & {pod["metadata"]["name"] for pod in stepping.pods()}
        assert not stepping.executors("node-2")
    finally:
        cluster.revive("node-2")


OVER_ITS_MEMORY = {
    "own": r"Rank 1 of 2 on host \S+ was ended by SIGKILL\. .*the memory limit of its container "
    r"\(cgroup, 2,202,009,600 bytes\) was reached.*spark\.executor\.memoryOverhead.*Restarting",
    "shared": r"Rank 1 of 2 on host \S+ is lost: executor \d+ .*possible container OOM\)\)\. .*"
    r"limit \(spark\.executor\.memory=600m, spark\.executor\.memoryOverhead=1500m\).*Restarting",
}


@pytest.mark.parametrize("memory", OVER_ITS_MEMORY)
def test_a_container_over_its_memory_is_named_and_the_training_goes_on(stepping, report, memory):
    def hoard() -> None:
        part = stepping.folder / "part"
        part.write_text(memory)
        part.rename(stepping.folder / "hoard")

    report(stepping.survives(hoard))
    assert re.search(OVER_ITS_MEMORY[memory], stepping.output())
