"""One attempt of so many simulated ranks, for the scale benchmark: prints its figures as JSON.

``python -m benchmarks.ranks.scale_driver JSON``: the arguments of ``attempt_of``. The driver's
classes are the real ones; its memory and processor time are this process's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ranks.processes import module_command, module_environment
from sparkdl_runner import __version__
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.diagnosis import result_of
from sparkdl_runner.launch.driver.gang import Gang
from sparkdl_runner.launch.driver.log_server import LogServer
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.assignments import assignments_of
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.messages import Stacks
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.rank.world import Peer

RANKS_PER_HOST = 8
PATIENCE_SECONDS = 300.0


class SimulatedGang(Gang):
    """A gang of agents that start no workers."""

    def __init__(self, num_proc: int, processes: int) -> None:
        attempt = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="scale")
        super().__init__(attempt, num_proc, (), show_output=False)
        self.server = LogServer(
            network.listen(network.LOOPBACK),
            host=network.LOOPBACK,
            num_proc=num_proc,
            receiver=self,
            attempt=attempt,
        )
        self.server.watch = self.watch
        self.has_ended = threading.Event()
        command = module_command("ranks.scale_agents")
        self.agents = [
            subprocess.Popen(command, env=module_environment(), stdin=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]

    def run(self) -> list[Outcome]:
        """Waits for the end of all."""
        if not self.has_ended.wait(PATIENCE_SECONDS):
            raise TimeoutError("no failure was heard")
        self.server.flush()
        return self.ends(self.failures)

    def end_ranks(self) -> None:
        """Tells the agents to stop."""
        self.server.stop_ranks()
        self.has_ended.set()

    def request_stop(self, reason: str) -> None:
        """Asks the agents' workers, of which there are none."""

    def ask_stacks(self) -> dict[int, Stacks]:
        """Asks the agents."""
        return self.server.ask_stacks()

    def tell_agents(self, peers: Sequence[Peer]) -> None:
        """Gives each process of agents its share, in whole hosts."""
        channel = self.server.channel
        shares: list[list[dict[str, Any]]] = [[] for _ in self.agents]
        for peer in peers:
            shares[peer.partition // RANKS_PER_HOST % len(shares)].append(peer.to_json())
        for process, share in zip(self.agents, shares, strict=True):
            where = {"host": channel.host, "port": channel.port, "key": channel.key.hex()}
            given = {**where, "victim": self.num_proc // 2, "peers": share}
            self.say(process, json.dumps(given))

    def say(self, process: subprocess.Popen[str], line: str) -> None:
        """Tells a process of agents something: who they are, or that the victim's worker dies."""
        if process.stdin is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()


def attempt_of(num_proc: int, processes: int, seconds: float) -> dict[str, float]:
    """Runs one attempt.

    Args:
        num_proc: How many ranks.
        processes: How many processes have the agents.
        seconds: How long to watch the ranks before one fails.
    """
    peers = [
        Peer(
            partition=partition,
            host=f"host-{partition // RANKS_PER_HOST}",
            host_key=f"key-{partition // RANKS_PER_HOST}",
            address=f"10.0.{partition // 2048}.{partition // RANKS_PER_HOST % 256}",
            interface="eth0",
            version=__version__,
        )
        for partition in range(num_proc)
    ]
    cpu = time.process_time()
    assignments_of(peers, backend="torch", attempt=0, version=__version__)
    figures = {"ranks assigned": time.process_time() - cpu}
    gang = SimulatedGang(num_proc, processes)
    try:
        clock, cpu = time.perf_counter(), time.process_time()
        gang.server.start()
        gang.watch.start()
        gang.tell_agents(peers)
        while (joined := len(gang.watch.running())) < num_proc:
            if time.perf_counter() - clock > PATIENCE_SECONDS:
                raise TimeoutError(f"{joined} of {num_proc} ranks have joined")
            time.sleep(0.5)
        figures["all joined"] = time.perf_counter() - clock
        figures["joining"] = time.process_time() - cpu
        clock, cpu = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        passed = time.perf_counter() - clock
        figures["watching"] = (time.process_time() - cpu) / passed
        clock, cpu = time.perf_counter(), time.process_time()
        for process in gang.agents:
            gang.say(process, "die")
        try:
            result_of(gang.run(), gang.attempt.run)
            raise AssertionError("the failure was not heard")
        except RunnerError as error:
            told = str(error)
        figures["failure told"] = time.perf_counter() - clock
        figures["telling"] = time.process_time() - cpu
        figures["error"] = len(told)
        figures["cause named"] = float(told.startswith(f"Rank {num_proc // 2} of {num_proc} "))
        # Not getrusage's: that counts what the process that started this one had.
        peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
        figures["memory"] = int(peak) * 1024 / 1e6
    finally:
        gang.close()
        gang.server.close()
        for process in gang.agents:
            process.kill()
            process.wait()
    return figures


if __name__ == "__main__":
    print(json.dumps(attempt_of(**json.loads(sys.argv[1]))))
