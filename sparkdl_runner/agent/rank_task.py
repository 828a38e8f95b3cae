"""The agent: a barrier-mode Spark task that starts one worker and stays with it to the end.

It runs in a Python process that Spark reuses for other tasks, so it changes nothing there: not
the environment, not the working folder, and it imports neither torch nor horovod.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from sparkdl_runner import __version__
from sparkdl_runner.agent.departures import Departures, attend
from sparkdl_runner.agent.log_client import LogClient
from sparkdl_runner.agent.other_users import check_host_is_not_shared
from sparkdl_runner.agent.rank_log import rank_log
from sparkdl_runner.agent.worker_environment import worker_environment
from sparkdl_runner.agent.worker_process import WorkerProcess
from sparkdl_runner.backends import get_backend
from sparkdl_runner.config import RunConfig
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.tracking.rank_run import RunTicket
from sparkdl_runner.wire import network
from sparkdl_runner.wire.channel import ChannelAddress
from sparkdl_runner.wire.control import Envelope
from sparkdl_runner.wire.outcome import SETTLE_SECONDS, Outcome, UnheardFailureError
from sparkdl_runner.world import Peer, assign_ranks, visible_gpus

# pyspark's task results end at 2 GiB; some of that is left to a rank's notes and last output.
MOST_RESULT_BYTES = (1 << 31) - (1 << 20)


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """What Spark carries to every agent: one attempt of one run."""

    backend: str
    attempt: int
    function: bytes = field(repr=False)
    search_path: tuple[str, ...]
    variables: Mapping[str, str] = field(repr=False)
    """Of the driver's environment."""
    channel: ChannelAddress
    config: RunConfig
    run: str
    """The run's own name, which no other run has."""
    ticket: RunTicket | None
    """The MLflow run that the training goes into."""
    single_host: bool
    """All tasks share the driver's host, so nothing needs to leave the loopback interface."""
    spark_set_threads: bool = False
    """Whether OMP_NUM_THREADS in the task's environment is Spark's, for a task of another size."""
    version: str = __version__

    def __call__(self, _rows: Iterable[Any]) -> Iterator[Outcome]:
        """Runs one rank. Spark calls this, in a barrier stage of as many tasks as ranks."""
        from pyspark import BarrierTaskContext

        yield self._run(BarrierTaskContext.get())

    def _run(self, context: Any) -> Outcome:
        if self.config.refuse_shared_hosts:
            check_host_is_not_shared()
        backend = get_backend(self.backend)
        backend.check_installed()
        address, interface = self._own_address(context)
        with ExitStack() as stack:
            # Bound before anyone is told of it, and never let go: no port is picked by guess.
            doors = backend.listen(address) if context.partitionId() == 0 else None
            if doors is not None:
                stack.callback(doors.close)
            farewells = None  # Where the others' agents say that their ranks have ended.
            if doors is not None and backend.store_in_worker:
                farewells = network.listen(address)
                stack.callback(farewells.close)
            me = Peer(
                partition=context.partitionId(),
                host=socket.gethostname(),
                host_key=network.host_key(address),
                address=address,
                addresses=network.addresses_of_host(),
                interface=interface,
                gpus=_own_gpus(context),
                rendezvous_port=doors.port if doors is not None else 0,
                departures_port=farewells.getsockname()[1] if farewells is not None else 0,
                version=__version__,
            )
            # The worker imports torch and the backend while Spark gathers.
            worker = WorkerProcess(
                backend=self.backend,
                environment=worker_environment(
                    threads=context.cpus(),
                    variables=self.variables,
                    overrule=self.spark_set_threads,
                ),
                shutdown_grace_seconds=self.config.shutdown_grace_seconds,
            )
            stack.callback(worker.end)
            client = LogClient(
                self.channel,
                me.partition,
                relay_output=self.config.driver_log_verbosity == "all",
                echo_output=not self.single_host,
                fence_seconds=2 * self.config.heartbeat_timeout_seconds,
                on_stop=worker.stop,
                on_stacks=worker.stacks,
            )
            stack.callback(client.close)
            peers = self._gather(context, me)
            world = assign_ranks(peers, backend=self.backend, attempt=self.attempt)[me.partition]
            environment = backend.environment(
                world,
                peers[0].address,
                peers[0].rendezvous_port,
                secret=self.channel.secret_for("rendezvous"),
                config=self.config,
                run=self.run,
            )
            if gpus := visible_gpus(peers, me.host_key):
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
            hosts = frozenset(address for peer in peers for address in peer.addresses)
            if doors is not None:
                release = backend.serve(
                    doors,
                    hosts,
                    num_proc=len(peers),
                    secret=self.channel.secret_for("rendezvous"),
                    tell=functools.partial(client.message, world),
                )
                stack.callback(release)
            if farewells is not None:
                departures = Departures(
                    farewells,
                    hosts,
                    len(peers) - 1,
                    self.channel.secret_for("departures"),
                    worker.release,
                )
                departures.start()
                stack.callback(departures.close)
            elif backend.store_in_worker:
                stack.enter_context(
                    attend(
                        peers[0].address,
                        peers[0].departures_port,
                        me.partition,
                        self.channel.secret_for("departures"),
                    )
                )
            client.place(world)
            worker.begin(
                Envelope.of(
                    world,
                    environment=environment,
                    search_path=self.search_path,
                    function=self.function,
                    ticket=self.ticket,
                    most_result_bytes=MOST_RESULT_BYTES,
                    listener=doors.for_worker if doors is not None else None,
                ),
                sink=client,
                log=rank_log(self.config.log_directory, self.run, world),
            )
            outcome = worker.wait()
            if outcome.is_failure and not client.driver_has_heard():
                if outcome.is_communication_error:
                    # Spark tells the driver of the task that fails first: let that be the cause's.
                    time.sleep(3 * SETTLE_SECONDS)
                raise UnheardFailureError.of(outcome)
            return replace(outcome, notes=outcome.notes + client.notes())

    def _own_address(self, context: Any) -> tuple[str, str]:
        if self.single_host:
            return network.LOOPBACK, network.interface_of(network.LOOPBACK) or "lo"
        advertised = context.getTaskInfos()[context.partitionId()].address
        return network.own_address(network.split_host_port(advertised)[0])

    def _gather(self, context: Any, me: Peer) -> Sequence[Peer]:
        """Tells all agents of this one and learns of all; the one call of Spark's barrier."""
        messages = context.allGather(json.dumps(me.to_json()))
        peers = [Peer.from_json(json.loads(message)) for message in messages]
        peers.sort(key=lambda peer: peer.partition)
        for peer in peers:
            if peer.version != self.version:
                raise LaunchError(
                    f"Host {peer.host} has sparkdl_runner {peer.version}, the driver has "
                    f"{self.version}. Install the same version everywhere."
                )
        return peers


def _own_gpus(context: Any) -> tuple[str, ...]:
    """The GPUs that Spark gave to this task, as CUDA_VISIBLE_DEVICES would name them.

    Where an executor was itself confined by CUDA_VISIBLE_DEVICES, Spark's addresses count within
    what it names.
    """
    gpu = context.resources().get("gpu")
    if gpu is None:
        return ()
    confined = os.environ.get("CUDA_VISIBLE_DEVICES")
    if confined is None:
        return tuple(gpu.addresses)
    visible = [entry.strip() for entry in confined.split(",") if entry.strip()]
    own = []
    for address in gpu.addresses:
        if not address.isdigit():
            own.append(address)
        elif int(address) < len(visible):
            own.append(visible[int(address)])
        else:
            raise LaunchError(
                f"Spark gave GPU {address} to a task on host {socket.gethostname()}, where "
                f"CUDA_VISIBLE_DEVICES={confined} shows only {len(visible)}. Make the discovery "
                "script of spark.executor.resource.gpu.discoveryScript list what the executor sees."
            )
    return tuple(own)
