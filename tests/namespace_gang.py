"""A gang of real agents and workers in network namespaces of this machine, without Spark.

Each host is a namespace on a bridge, whose other end is the driver's. What Spark does otherwise,
starting one process for each rank and carrying its task there, is a few lines here.
``python -m namespace_gang`` runs the task on standard input, as Spark's Python would.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle

from namespaces import ip
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.agent.rank_task import RankTask
from sparkdl_runner.launch.agent.spares.task import SpareTask
from sparkdl_runner.launch.driver.diagnosis import explains_the_end
from sparkdl_runner.launch.driver.gang import Gang
from sparkdl_runner.launch.driver.log_server import LogServer
from sparkdl_runner.launch.driver.watch import Verdict
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.messages import RequestStop, Stacks
from sparkdl_runner.launch.wire.outcome import Outcome, Status

# How long the agents may take to end after the driver's word.
END_SECONDS = 12.0
_AGENT = (sys.executable, "-m", "namespace_gang")


class Namespaces:
    """Hosts, each a network namespace, on one bridge with the driver."""

    def __init__(self, count: int) -> None:
        number = os.getpid() % 200 + 20
        self._bridge = f"sdf{number}"
        self.driver = f"10.204.{number}.1"
        self.names = [f"sdf{number}h{host}" for host in range(count)]
        self.addresses = [f"10.204.{number}.{host + 2}" for host in range(count)]
        try:
            self._make()
        except BaseException:  # Also a request to end.
            self.close()
            raise

    def _make(self) -> None:
        ip("link", "add", self._bridge, "type", "bridge")
        ip("address", "add", f"{self.driver}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            ip("netns", "add", name)
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", name, "master", self._bridge)
            ip("link", "set", name, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def vanish(self, host: int) -> None:
        """Cuts a host off from all."""
        ip("link", "set", self.names[host], "down")

    def part(self) -> None:
        """Lets all hosts reach the driver and none of the others."""
        self._isolate("on")

    def mend(self) -> None:
        """Connects all again."""
        self._isolate("off")
        for name in self.names:
            ip("link", "set", name, "up")

    def _isolate(self, state: str) -> None:
        for name in self.names:
            command = ["bridge", "link", "set", "dev", name, "isolated", state]
            subprocess.run(command, check=True)

    def close(self) -> None:
        """Removes them, as far as they were made."""
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
        delete = ["ip", "link", "delete", self._bridge]
        subprocess.run(delete, check=False, stderr=subprocess.DEVNULL)


class NamespaceGang(Gang):
    """One rank in each namespace, in turn."""

    def __init__(self, attempt: AttemptSpec, num_proc: int, hosts: Namespaces) -> None:
        super().__init__(attempt, num_proc, (), show_output=False)
        self._hosts = hosts
        self._server = LogServer(
            network.listen(hosts.driver),
            host=hosts.driver,
            num_proc=num_proc,
            receiver=self,
            attempt=attempt,
        )
        self._server.watch = self.watch
        self.agents: list[subprocess.Popen[bytes]] = []
        self._end_by = float("inf")
        self._barrier = tempfile.TemporaryDirectory()
        self._launch_problem = ""

    def run(self) -> list[Outcome]:
        """See ``Gang.run``."""
        self._server.start()
        self.watch.start()
        try:
            for partition in range(self.num_proc):
                self.agents.append(self._start(partition))
            while (
                any(one.poll() is None for one in self.agents) and time.monotonic() < self._end_by
            ):
                if any(one.poll() for one in self.agents):
                    self.stop()  # As Spark ends a barrier stage of which a task has raised.
                time.sleep(0.02)
            self._server.flush(0.5)
            outcomes = [self._outcome(one) for one in self.agents if one.poll() == 0]
            told = [one for one in outcomes if one is not None]
            if self._launch_problem:
                raise RunnerError(self._launch_problem)
            ends = self.ends(told)
            found = ends if explains_the_end(ends) or len(told) == self.num_proc else self.failures
            if not any(one.is_failure for one in found):
                self._raise_what_agents_raised()
            return found
        finally:
            for one in self.agents:
                one.kill()
                one.communicate()
            self.close()
            self._server.close()
            self._barrier.cleanup()

    def _start(self, partition: int) -> subprocess.Popen[bytes]:
        host = partition % len(self._hosts.names)
        task = RankTask(
            attempt=self.attempt,
            channel=self._server.channel,
            single_host=False,
            most_result_bytes=1 << 20,
            sends_value=True,
            spare=SpareTask(
                backend=self.attempt.backend, variables=self.attempt.variables, seconds=0
            ),
        )
        with open(self._errors(partition), "wb") as errors:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self._hosts.names[host], *_AGENT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        if process.stdin is not None:
            addresses = self._hosts.addresses
            barrier = (self._barrier.name, self.num_proc)
            process.stdin.write(cloudpickle.dumps((task, partition, addresses[host], barrier)))
            process.stdin.close()
            process.stdin = None
        return process

    def _errors(self, partition: int) -> Path:
        return Path(self._barrier.name) / f"errors-{partition}"

    def _raise_what_agents_raised(self) -> None:
        for partition, agent in enumerate(self.agents):
            if agent.poll():
                last = self._errors(partition).read_text().strip().rpartition("\n")[2]
                raise RunnerError(f"The agent of partition {partition} ended: {last}")

    def _outcome(self, agent: subprocess.Popen[bytes]) -> Outcome | None:
        packed = agent.stdout.read() if agent.stdout else b""
        return pickle.loads(packed) if packed else None  # From our own process.

    def act_on(self, verdict: Verdict) -> None:
        """See ``Gang.act_on``; a host that is cut off hears nothing of it."""
        self._launch_problem = verdict.launch_problem
        super().act_on(verdict)
        if any(one.status == Status.LOST for one in verdict.failures):
            self._end_by = 0.0

    def end_ranks(self) -> None:
        """See ``Gang.end_ranks``."""
        self._end_by = min(self._end_by, time.monotonic() + END_SECONDS)
        self._server.stop_ranks()

    def request_stop(self, reason: str) -> None:
        """See ``Gang.request_stop``."""
        self._server.request(RequestStop(reason))

    def ask_stacks(self) -> dict[int, Stacks]:
        """See ``Gang.ask_stacks``."""
        return self._server.ask_stacks()


def _run_task() -> None:
    """Runs one rank in this process, and writes its outcome."""
    task, partition, address, barrier = pickle.loads(sys.stdin.buffer.read())
    infos = [SimpleNamespace(address=f"{address}:1")] * (partition + 1)
    context: Any = SimpleNamespace(
        partitionId=lambda: partition,
        attemptNumber=lambda: 0,
        cpus=lambda: 1,
        resources=dict,
        getTaskInfos=lambda: infos,
        allGather=lambda message: _all_gather(Path(barrier[0]), barrier[1], partition, message),
    )
    from pyspark import SparkFiles

    # As Spark's worker does it.
    SparkFiles._root_directory, SparkFiles._is_running_on_worker = barrier[0], True
    for outcome in task._run(context):
        sys.stdout.buffer.write(pickle.dumps(outcome))


def _all_gather(folder: Path, num_proc: int, partition: int, message: str) -> list[str]:
    """Spark's ``allGather`` by files."""
    (folder / f"new-{partition}").write_text(message)
    (folder / f"new-{partition}").rename(folder / str(partition))
    while not all((folder / str(one)).exists() for one in range(num_proc)):
        time.sleep(0.1)
    return [(folder / str(one)).read_text() for one in range(num_proc)]


if __name__ == "__main__":
    _run_task()
