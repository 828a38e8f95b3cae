"""Runs ranks as processes of this host alone: no Spark, no Java."""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from sparkdl_runner.base.cores import usable_cores
from sparkdl_runner.base.processes import HAS_PROC
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.agent.host.other_users import check_host_is_not_shared
from sparkdl_runner.launch.agent.rank_log import RankLog, rank_log
from sparkdl_runner.launch.agent.spares.pool import keep_template, start_workers
from sparkdl_runner.launch.agent.spares.restart_spares import RestartSpares
from sparkdl_runner.launch.agent.supervision import supervise
from sparkdl_runner.launch.agent.worker_environment import worker_environment
from sparkdl_runner.launch.agent.worker_process import WorkerProcess
from sparkdl_runner.launch.backends import Backend, Rendezvous
from sparkdl_runner.launch.driver.calls.interruptible import wait_until_done
from sparkdl_runner.launch.driver.gang import Gang
from sparkdl_runner.launch.driver.local_gpus import gpu_of
from sparkdl_runner.launch.driver.spark.context import folder_of_files
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.control import Envelope
from sparkdl_runner.launch.wire.messages import Stacks, Text
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.launch.worker import spark_files
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import Peer, World, assign_ranks

# More ranks than this take minutes to import torch, and most of the memory.
RANKS_PER_CORE = 8


class LocalLauncher:
    """The ``Launcher`` of this host.

    Args:
        num_proc: How many ranks.
        backend: What they use.

    Raises:
        LaunchError: They are too many for this host, or the backend is not installed.
    """

    is_single_host = True
    application_id = None

    def __init__(self, num_proc: int, backend: Backend) -> None:
        check_cores(
            num_proc,
            per_core=RANKS_PER_CORE,
            reason="where a negative number runs them",
            instead=f"for {num_proc}, without the minus, on a Spark cluster",
        )
        backend.check_installed()
        self._num_proc = num_proc

    def run(
        self, attempt: AttemptSpec, reports: Sequence[Reports], stop: StopRequest
    ) -> list[Outcome]:
        """See ``Launcher.run``."""
        if not HAS_PROC:
            _tell_what_is_missing()
        gang = LocalGang(attempt, self._num_proc, reports)
        with stop.told_to(gang.request_stop, gang.interrupt), closing(gang.spares):
            return gang.run()

    def keep_out(self, ranks: Collection[int]) -> str:
        """See ``Launcher.keep_out``."""
        return "all ranks run on this host"


class LocalGang(Gang):
    """Ranks as child processes of the driver, which does for each what an agent would.

    All that they print is shown, whatever ``driver_log_verbosity`` is: the driver is the only
    place where it could be seen.
    """

    def __init__(self, attempt: AttemptSpec, num_proc: int, reports: Sequence[Reports]) -> None:
        super().__init__(attempt, num_proc, reports, show_output=True)
        self._workers: list[WorkerProcess] = []
        self._requested = ""
        self.spares = RestartSpares(
            self._keep_template,
            seconds=attempt.spare_seconds,
            may_restart=attempt.may_restart,
            waits_for_restart=attempt.waits_for_restart,
            run=attempt.run if attempt.config.max_restarts else "",
        )

    def run(self) -> list[Outcome]:
        """See ``Launcher.run``."""
        if self.attempt.config.refuse_shared_hosts:
            check_host_is_not_shared()
        worlds = self._worlds()
        with ExitStack() as stack:
            listeners = self.backend.listen(network.LOOPBACK)
            stack.callback(listeners.close)
            held = [self.backend.hold_port() for _ in worlds]
            for held_port in held:
                if held_port is not None:
                    stack.callback(held_port.close)
            rendezvous = Rendezvous(
                address=network.LOOPBACK,
                port=listeners.port,
                secret=secrets.token_hex(16),
                peers=frozenset({network.LOOPBACK}),
                num_proc=self.num_proc,
                attempt=self.attempt,
                servers=tuple(
                    f"{network.LOOPBACK}:{held_port.getsockname()[1]}"
                    for held_port in held
                    if held_port is not None
                ),
            )
            stack.callback(
                self.backend.serve(
                    listeners, rendezvous, lambda text: self.take(worlds[0], Text(text))
                )
            )
            self._workers = start_workers(
                self.num_proc,
                backend=self.backend.name,
                environment=self._environment(),
                shutdown_grace_seconds=self.attempt.config.shutdown_grace_seconds,
                with_template=self.attempt.uses_template(self.num_proc),
                may_restart=self.attempt.waits_for_restart,
            )
            for worker in self._workers:
                stack.callback(worker.end)
            self.request_stop(self._requested)
            if self.is_ending:  # It was asked for before there were workers.
                self.end_ranks()
            pool = stack.enter_context(ThreadPoolExecutor(self.num_proc, "sparkdl-rank"))
            stack.callback(self.close)
            try:
                for world in worlds:
                    self.watch.placed(world.rank, world)
                self.watch.start()
                ends = []
                for world, worker in zip(worlds, self._workers, strict=True):
                    envelope = Envelope.of(
                        self.attempt,
                        world,
                        environment=self._rank_environment(world, rendezvous),
                        listener=listeners.private if world.rank == 0 else None,
                    )
                    log = rank_log(self.attempt.config.log_directory, self.attempt.run, world)
                    ends.append(pool.submit(self._run, worker, envelope, log))
                # Rank 0's worker may serve what the others need, and so ends after them.
                wait_until_done(ends[1:])
                self._workers[0].release()
                wait_until_done(ends[:1])
                return self.ends([end.result() for end in ends])
            except BaseException:
                self.stop()
                raise

    def _rank_environment(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        environment = self.backend.environment(self.attempt.node_view(world), rendezvous)
        environment |= self.spares.memory(lives_with=os.getpid())
        if folder := folder_of_files():
            environment[spark_files.FOLDER] = folder
        if self.attempt.config.node_view == "task" and (gpu := gpu_of(world.rank)):
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        return environment

    def _keep_template(self, seconds: float) -> None:
        keep_template(seconds, backend=self.backend.name, environment=self._environment())

    def end_ranks(self) -> None:
        """See ``Gang.end_ranks``."""
        if self.will_restart:
            self.spares.restart_comes()
        for worker in self._workers:
            worker.stop()

    def request_stop(self, reason: str) -> None:
        """See ``Gang.request_stop``."""
        self._requested = reason
        for worker in self._workers if reason else ():
            worker.request_stop(reason)

    def ask_stacks(self) -> dict[int, Stacks]:
        """See ``Gang.ask_stacks``."""
        with ThreadPoolExecutor(len(self._workers)) as threads:
            return dict(enumerate(threads.map(WorkerProcess.stacks, self._workers)))

    def _environment(self) -> dict[str, str]:
        return worker_environment(
            threads=max(1, usable_cores() // self.num_proc),
            variables=self.attempt.variables,
        )

    def _worlds(self) -> list[World]:
        """The ranks' places, in the order of ranks."""
        interface = network.interface_of(network.LOOPBACK) or "lo"
        peers = [
            Peer(
                partition=rank,
                host=socket.gethostname(),
                host_key="this host",
                address=network.LOOPBACK,
                interface=interface,
            )
            for rank in range(self.num_proc)
        ]
        attempt = self.attempt
        worlds = assign_ranks(peers, backend=attempt.backend, attempt=attempt.number)
        return list(worlds.values())

    def _run(self, worker: WorkerProcess, envelope: Envelope, log: RankLog) -> Outcome:
        try:
            return supervise(worker, envelope, self, log)
        finally:
            self.watch.ended(envelope.world)


@functools.cache
def _tell_what_is_missing() -> None:
    """Says it once in this process."""
    tell(
        "this system has no /proc: a hang is seen later if another thread of the rank computes, a "
        "kill for lack of memory looks like any other, and other users of this machine are not "
        "kept from the ranks' store."
    )


def check_cores(num_proc: int, *, per_core: int, reason: str, instead: str) -> None:
    """Refuses so many ranks on this host that they would hardly start.

    Args:
        num_proc: How many there are to be.
        per_core: How many of them a core of this host can start.
        reason: Why they would run on this host.
        instead: What else the person can ask for.

    Raises:
        LaunchError: They are too many.
    """
    cores = usable_cores()
    if num_proc > per_core * cores:
        raise LaunchError(
            f"{num_proc} ranks are too many for the {cores} {'core' if cores == 1 else 'cores'} of "
            f"this host, {reason}: ask for at most {per_core * cores} ranks here, or {instead}."
        )
