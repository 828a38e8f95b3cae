"""conf/standalone as its README has it: two hosts, a secret, GPUs, and a packed environment."""

from __future__ import annotations

import ast
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest
from hosts import Hosts

from namespaces import why_not

REASON = why_not()
pytestmark = [
    pytest.mark.integration,
    # tests/integration/standalone has a standalone cluster in both.
    pytest.mark.one_lane,
    pytest.mark.skipif(REASON is not None, reason=f"needs several hosts: {REASON}"),
]

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "conf" / "standalone"
LOOK_AROUND = Path(__file__).parent / "look_around.py"


def new_secret(file: Path) -> Path:
    subprocess.run([SCRIPTS / "new_secret.sh", file], check=True, capture_output=True)
    return file


class Services:
    """A master beside the driver and a worker on each host, as the scripts start them."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.secret = new_secret(folder / "cluster.secret")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://{hosts.driver}:0"  # Of any port, until there is a master.

    def environment(self, address: str, **further: str) -> dict[str, str]:
        """What the scripts ask for, and what keeps the daemons small and apart."""
        return {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": address,
            "SECRET_FILE": str(self.secret),
            "MASTER_URL": self.url,
            "SPARK_MASTER_PORT": self.url.rpartition(":")[2],
            "SPARK_MASTER_WEBUI_PORT": "0",
            "SPARK_WORKER_WEBUI_PORT": "0",
            "SPARK_WORKER_CORES": "2",
            "SPARK_WORKER_MEMORY": "700m",
            "SPARK_WORKER_DIR": str(self.folder / f"work-{address}"),
            "SPARK_DAEMON_MEMORY": "256m",
            **further,
        }

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> Path:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self.processes.append(
                subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            )
        return log

    def start_master(self) -> None:
        command = [str(SCRIPTS / "start_master.sh")]
        log = self.start("master", command, self.environment(self.hosts.driver))
        wait_for(log, r"INFO Master: I have been elected leader")
        self.url = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())[1]

    def start_worker(self, host: int, *arguments: str, **further: str) -> Path:
        """Starts one with a fake GPU, of a number of its own on each host."""
        address = self.hosts.addresses[host]
        tools = self.folder / f"bin-{address}"
        tools.mkdir(exist_ok=True)
        fake = tools / "nvidia-smi"
        fake.write_text(f"#!/bin/sh\necho 'GPU {6 + host}: NVIDIA A10G (UUID: GPU-0c1d6c7e)'\n")
        fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
        path = f"{tools}:{os.environ['PATH']}"
        prefix = ["ip", "netns", "exec", self.hosts.names[host]]
        environment = self.environment(address, PATH=path, **further)
        name = f"worker-{host}-{len(self.processes)}"
        return self.start(
            name, [*prefix, str(SCRIPTS / "start_worker.sh"), *arguments], environment
        )

    def family(self) -> list[psutil.Process]:
        """The daemons and all that they have started."""
        parents = [psutil.Process(one.pid) for one in self.processes if one.poll() is None]
        return parents + [child for one in parents for child in one.children(recursive=True)]

    def close(self) -> None:
        family = self.family()
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()
        for daemon in self.processes:
            daemon.wait()


def wait_for(log: Path, words: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not re.search(words, log.read_text()):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    yield hosts
    hosts.close()


@pytest.fixture(scope="module")
def services(hosts, tmp_path_factory) -> Iterator[Services]:
    services = Services(hosts, tmp_path_factory.mktemp("services"))
    try:
        services.start_master()
        for log in [services.start_worker(host, "--gpus") for host in (0, 1)]:
            wait_for(log, "INFO Worker: Successfully registered with master")
        yield services
    finally:
        services.close()


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """An archive whose Python is that of these tests, and says that it came from the archive.

    What is in one of conf/pack_environment.sh is another test's matter.
    """
    folder = tmp_path_factory.mktemp("packed")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPACKED_ENVIRONMENT=$0 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    return folder / "environment.tar.gz"


def command_lines() -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        found += process.info["cmdline"] or []
    return found


def submit(services: Services, packed: Path, *arguments: str, **further: str) -> tuple[str, str]:
    """Submits a job and returns its output and all command lines that there were meanwhile."""
    # The hosts are as small as half of this machine; they have less memory than the settings ask.
    sized = {
        "spark.executor.cores": "2",
        "spark.executor.memory": "600m",
        "spark.ui.port": "0",
    }
    options = [word for key, value in sized.items() for word in ("--conf", f"{key}={value}")]
    output = services.folder / "submit.log"
    seen: set[str] = set()
    with output.open("wb") as log:
        process = subprocess.Popen(
            [str(SCRIPTS / "submit.sh"), *options, *arguments],
            env=services.environment(
                services.hosts.driver,
                ENVIRONMENT=str(packed),
                SPARK_DEFAULTS=str(ROOT / "conf" / "spark" / "spark-defaults-gpu-shared.conf"),
                PYSPARK_DRIVER_PYTHON=sys.executable,
                **further,
            ),
            cwd=services.folder,
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + 500
            while process.poll() is None:
                assert time.monotonic() < deadline, output.read_text()
                seen |= set(command_lines())
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    assert process.returncode == 0, output.read_text()[-5000:]
    return output.read_text(), "\n".join(seen)


def test_two_hosts_train_with_a_gpu_each_and_the_secret_stays_where_it_is(services, packed):
    arguments = ["--function", f"{LOOK_AROUND}:train", "--backend", "torch", "--num-proc", "2"]
    output, seen = submit(services, packed, str(ROOT / "jobs" / "train.py"), *arguments)
    (line,) = [line for line in output.splitlines() if line.startswith("rank 0 returned ")]
    ranks = ast.literal_eval(line.removeprefix("rank 0 returned "))
    assert {rank["address"] for rank in ranks} == set(services.hosts.addresses)
    # By stage-level scheduling: the settings give no task a GPU.
    assert sorted(rank["gpus"] for rank in ranks) == ["6", "7"]
    assert {rank["packed"] for rank in ranks} == {"./environment/bin/python"}
    assert ranks[0]["weight"] == ranks[1]["weight"]

    secret = services.secret.read_text().split()[-1]
    assert "org.apache.spark.deploy.SparkSubmit" in seen
    assert "org.apache.spark.executor.CoarseGrainedExecutorBackend" in seen
    assert secret not in seen
    assert secret not in output
    assert not any(secret in log.read_text() for log in services.folder.glob("*.log"))


def test_daemons_listen_on_the_address_they_were_given_alone(services):
    for name, address in zip(services.hosts.names, services.hosts.addresses, strict=True):
        # Nothing else is on such a host.
        assert listening(["ip", "netns", "exec", name]) == {address}
    master = {
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.Process(services.processes[0].pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert master == {services.hosts.driver}


def listening(prefix: list[str]) -> set[str]:
    """The addresses on which anything listens."""
    table = subprocess.run(
        [*prefix, "ss", "-ltnH"], capture_output=True, text=True, check=True
    ).stdout
    ends = [line.split()[3] for line in table.splitlines()]
    return {end.rpartition(":")[0].strip("[]").removeprefix("::ffff:") for end in ends}


def test_who_has_another_secret_does_not_become_a_worker(services, tmp_path):
    other = new_secret(tmp_path / "other.secret")
    log = services.start_worker(0, SECRET_FILE=str(other))
    stranger = services.processes.pop()
    try:
        wait_for(log, "WARN Worker: Failed to connect to master")
        assert "Successfully registered" not in log.read_text()
    finally:
        stranger.send_signal(signal.SIGTERM)
        stranger.wait(300)
