"""Runs a gang as processes of this host alone: no Spark, no Java."""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack

from sparkdl_runner.agent.other_users import check_host_is_not_shared
from sparkdl_runner.agent.rank_log import rank_log
from sparkdl_runner.agent.worker_environment import (
    driver_search_path,
    driver_variables,
    worker_environment,
)
from sparkdl_runner.agent.worker_process import WorkerProcess
from sparkdl_runner.backends import get_backend
from sparkdl_runner.config import RunConfig
from sparkdl_runner.driver.console import Console
from sparkdl_runner.driver.gang import Gang
from sparkdl_runner.driver.watch import Verdict, Watch
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.hooks.reports import Reports
from sparkdl_runner.tracking.rank_run import RunTicket
from sparkdl_runner.wire import network
from sparkdl_runner.wire.control import Envelope
from sparkdl_runner.wire.outcome import Outcome, with_failures
from sparkdl_runner.world import Peer, World, assign_ranks

# With more, ranks take minutes to import torch, and most of the memory.
RANKS_PER_CORE = 8


def check_cores(num_proc: int) -> None:
    """Refuses so many ranks on this host that they would hardly start.

    Raises:
        LaunchError: They are too many.
    """
    cores = len(os.sched_getaffinity(0))
    most = RANKS_PER_CORE * cores
    if num_proc > most:
        raise LaunchError(
            f"{num_proc} ranks are too many for this host, where a negative number runs them: it "
            f"has {cores} {'core' if cores == 1 else 'cores'}. Ask for at most {most} ranks here "
            f"({-most}), or for {num_proc}, without the minus, on a Spark cluster."
        )


def launch(
    *,
    num_proc: int,
    backend: str,
    function: bytes,
    config: RunConfig,
    run: str,
    attempt: int = 0,
    ticket: RunTicket | None = None,
    reports: Sequence[Reports] = (),
) -> list[Outcome]:
    """Runs the function as ``num_proc`` ranks on this host and waits for all of them to end.

    All that the ranks print is shown, whatever ``driver_log_verbosity`` is: here the driver is
    the only place where it could be seen.

    Args:
        num_proc: The number of ranks.
        backend: The backend's name.
        function: Made by ``function.pack``.
        config: The run's settings.
        run: The run's own name.
        attempt: Which submission of the gang this is.
        ticket: The MLflow run that the training goes into.
        reports: Who takes what ranks tell of their training.

    Returns:
        How each rank ended, in the order of ranks.

    Raises:
        LaunchError: The host is shared, and ``config`` refuses that.
    """
    if config.refuse_shared_hosts:
        check_host_is_not_shared()
    interface = network.interface_of(network.LOOPBACK) or "lo"
    peers = [
        Peer(
            partition=rank,
            host=socket.gethostname(),
            host_key="this host",
            address=network.LOOPBACK,
            interface=interface,
        )
        for rank in range(num_proc)
    ]
    worlds = assign_ranks(peers, backend=backend, attempt=attempt)
    console = Console(show_output=True, reports=reports)
    chosen = get_backend(backend)
    environment = worker_environment(
        threads=max(1, len(os.sched_getaffinity(0)) // num_proc),
        variables=driver_variables(config.environment),
    )
    with ExitStack() as stack:
        doors = chosen.listen(network.LOOPBACK)
        stack.callback(doors.close)
        secret = secrets.token_hex(16)
        release = chosen.serve(
            doors,
            frozenset({network.LOOPBACK}),
            num_proc=num_proc,
            secret=secret,
            tell=functools.partial(console.message, worlds[0]),
        )
        stack.callback(release)
        workers = []
        for _ in range(num_proc):
            worker = WorkerProcess(
                backend=backend,
                environment=environment,
                shutdown_grace_seconds=config.shutdown_grace_seconds,
            )
            stack.callback(worker.end)
            workers.append(worker)

        def stop_all() -> None:
            for worker in workers:
                worker.stop()

        def ask_stacks() -> dict[int, str]:
            return {world.rank: worker.stacks() for world, worker in ranks}

        def act_on(verdict: Verdict) -> None:
            for failure in verdict.failures:
                console.failed(failure)
            console.gang.stop()

        console.gang = Gang(stop_all)
        stack.callback(console.gang.close)
        console.watch = Watch(
            config=config,
            backend=chosen,
            num_proc=num_proc,
            ask_stacks=ask_stacks,
            on_verdict=act_on,
        )
        ranks = list(zip(worlds.values(), workers, strict=True))
        pool = stack.enter_context(
            ThreadPoolExecutor(num_proc + 1, thread_name_prefix="sparkdl-rank")
        )
        try:
            for world, worker in ranks:
                envelope = Envelope.of(
                    world,
                    environment=chosen.environment(
                        world,
                        network.LOOPBACK,
                        doors.port,
                        secret=secret,
                        config=config,
                        run=run,
                    ),
                    search_path=driver_search_path(),
                    function=function,
                    ticket=ticket,
                    most_result_bytes=None,
                    listener=doors.for_worker if world.rank == 0 else None,
                )
                worker.begin(envelope, console, rank_log(config.log_directory, run, world))
            for world, _ in ranks:
                console.watch.present(world.rank, world.host)
                console.watch.placed(world.rank, world)
            console.watch.start()
            stack.callback(console.watch.close)
            ends = [pool.submit(_wait, world, worker, console) for world, worker in ranks]
            pool.submit(_release, workers[0], ends[1:])
            outcomes = [end.result() for end in ends]
            console.all_ended(outcomes)
            return with_failures(outcomes, console.failures)
        except BaseException:
            console.gang.stop()
            raise


def _release(worker: WorkerProcess, others: Sequence[Future[Outcome]]) -> None:
    """Lets rank 0's worker end once no other rank can need what it serves."""
    wait(others)
    worker.release()


def _wait(world: World, worker: WorkerProcess, console: Console) -> Outcome:
    try:
        return worker.wait()
    finally:
        console.watch.ended(world)
