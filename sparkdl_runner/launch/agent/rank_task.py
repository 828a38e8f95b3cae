"""The agents of a Spark task: each starts one worker and stays with it to the end.

They run in a Python process that Spark reuses for other tasks, so they change nothing there: not
the environment, not the working folder, and they import neither torch nor horovod.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.sent_file import SentFile
from sparkdl_runner.base.version import __version__
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.agent.awaited_assignment import AwaitedAssignment
from sparkdl_runner.launch.agent.host.address_space import lift_limit
from sparkdl_runner.launch.agent.host.ec2_notice import SpotNotice, endpoint
from sparkdl_runner.launch.agent.host.other_users import check_host_is_not_shared
from sparkdl_runner.launch.agent.large_value import Delivery
from sparkdl_runner.launch.agent.log_client import LogClient
from sparkdl_runner.launch.agent.rank_log import rank_log
from sparkdl_runner.launch.agent.rank_ports import RankPorts
from sparkdl_runner.launch.agent.ranks_of_task import RanksOfTask, seen_by_all, shares
from sparkdl_runner.launch.agent.spares.pool import start_workers
from sparkdl_runner.launch.agent.spares.restart_spares import RestartSpares
from sparkdl_runner.launch.agent.spares.task import SpareTask
from sparkdl_runner.launch.agent.supervision import supervise
from sparkdl_runner.launch.agent.worker_process import WorkerProcess
from sparkdl_runner.launch.backends import Rendezvous, get_backend
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.assignments import Assignment, assignments_of
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.channel import SETTLE_SECONDS, ChannelAddress
from sparkdl_runner.launch.wire.control import Envelope
from sparkdl_runner.launch.wire.failure_report import UnheardFailureError
from sparkdl_runner.launch.wire.messages import Failed, Stop, Text
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.launch.worker import spark_files
from sparkdl_runner.rank.world import Peer, World

if TYPE_CHECKING:
    from pyspark.broadcast import Broadcast


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """The arguments of a task's agents, which Spark carries: one attempt of one run."""

    attempt: AttemptSpec
    large_function: Broadcast[bytes] | SentFile | None = None
    """The function, if it is too large to travel within the attempt."""
    channel: ChannelAddress
    is_barrier: bool = True
    """Whether Spark starts all tasks of the stage at once, and lets them meet."""
    single_host: bool
    """All tasks share the driver's host, so nothing needs to leave the loopback interface."""
    most_result_bytes: int
    """How large the value may be that Spark carries."""
    sends_value: bool
    """Whether values may go to the driver by the channel, which is in clear: plain ones ahead of
    the task's end, and those that are too large for Spark."""
    spare: SpareTask
    """How workers start here, and whether one is left to the next call."""
    version: str = __version__

    def __call__(self, _rows: Iterable[Any]) -> Iterator[Outcome]:
        """Runs the task's ranks. Spark calls this, in a stage of the tasks of all ranks."""
        from pyspark import TaskContext

        yield from self._run(TaskContext.get())

    def _run(self, context: Any) -> list[Outcome]:
        """How the ranks ended; none if the start was given up."""
        config = self.attempt.config
        if config.refuse_shared_hosts:
            check_host_is_not_shared()
        get_backend(self.attempt.backend).check_installed()
        count = self.spare.ranks
        first = context.partitionId() * count
        ranks = RanksOfTask(
            range(first, first + count), lambda peers: self._exchange(context, peers)
        )
        address, interface = self._own_address(context)
        me = Peer(
            partition=first,
            host=socket.gethostname(),
            host_key=network.host_key(address),
            address=address,
            addresses=network.addresses_of_host(),
            interface=interface,
            version=__version__,
        )
        gpus = shares(self._gpus(context), count)
        spares = RestartSpares(
            partial(self.spare.keep, context),
            seconds=self.spare.seconds,
            may_restart=self.attempt.may_restart,
            waits_for_restart=self.attempt.waits_for_restart,
            run=self.attempt.run if config.max_restarts else "",
        )

        def run(place: int) -> Outcome | None:
            peer = replace(me, partition=place, gpus=gpus[place - first])
            return self._run_rank(context, peer, ranks, seen_by_all(gpus), spares)

        with closing(spares):
            return [outcome for outcome in ranks.run(run) if outcome is not None]

    def _run_rank(
        self,
        context: Any,
        me: Peer,
        ranks: RanksOfTask,
        gpus_of_task: tuple[str, ...],
        spares: RestartSpares,
    ) -> Outcome | None:
        """How a rank ended; None if the start was given up."""
        config, backend = self.attempt.config, get_backend(self.attempt.backend)
        with ExitStack() as stack:
            ports = RankPorts.open(
                stack, backend, me.address, config.port_range, is_first=me.partition == 0
            )
            me = ports.told_by(me)
            # The worker imports torch and the backend while the agents find one another.
            (worker,) = start_workers(
                1,
                backend=backend.name,
                environment=self.spare.environment(context),
                shutdown_grace_seconds=config.shutdown_grace_seconds,
                with_template=self.attempt.uses_template(
                    self.spare.ranks, can_keep=self.spare.can_keep()
                ),
                may_restart=self.attempt.waits_for_restart,
            )
            stack.callback(worker.end)
            limited = lift_limit(worker.importing_pid)
            awaited = AwaitedAssignment()

            def stop(will_restart: bool = False) -> None:
                awaited.answer(Stop())
                worker.stop()
                if will_restart:
                    spares.restart_comes()

            ranks.on_failure(stop)
            client = self._connected(me, worker, awaited, stop, context.attemptNumber())
            stack.callback(client.close)
            seconds = config.start_timeout_seconds
            assignment = awaited.wait(lambda: ranks.gather(me), seconds)
            if assignment is None:
                return None
            world = assignment.world
            rendezvous = self._rendezvous(assignment)
            ports.serve(
                stack,
                assignment,
                rendezvous,
                secret=self.channel.secret_for("exits"),
                tell=lambda text: client.take(world, Text(text)),
                release=worker.release,
            )
            client.place(world)
            if limited and world.local_rank == 0:
                client.take(world, Text(limited))
            if world.local_rank == 0 and not self.single_host and (url := endpoint()):
                stack.callback(SpotNotice(url, worker.preempt).close)
            seen = self.attempt.node_view(world, self.spare.ranks)
            environment = backend.environment(seen, rendezvous)
            environment[spark_files.FOLDER] = _folder_of_files()
            # Spark's daemon, or the executor: this process may end with the attempt.
            environment |= spares.memory(lives_with=os.getppid())
            gpus = gpus_of_task if config.node_view == "task" else assignment.gpus
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
            outcome = supervise(
                worker,
                Envelope.of(
                    ranks.one_by_one(self._with_function),
                    world,
                    environment=environment,
                    listener=None if ports.store is None else ports.store.private,
                ),
                receiver=client,
                log=rank_log(config.log_directory, self.attempt.run, world),
                sends_value=self.sends_value,
            )
            # Of a rank that has lost its peers, the driver says whether it starts again.
            may_be_the_cause = outcome.is_failure and not outcome.is_communication_error
            user_errors = config.restart_user_errors
            if may_be_the_cause and outcome.allows_restart(user_errors=user_errors):
                spares.restart_comes()
            carrier = client if self.sends_value else None
            delivery = Delivery(self.most_result_bytes, carrier, self.attempt.run)
            delivered = delivery.deliver(outcome)
            if delivered.is_failure and not outcome.is_failure:
                client.take(world, Failed(delivered))
            return self._heard(client, world, delivered)

    def _gpus(self, context: Any) -> tuple[str, ...]:
        """The task's GPUs; none where the run says itself which of them its ranks see."""
        if "CUDA_VISIBLE_DEVICES" in self.attempt.variables:
            return ()
        return _own_gpus(context)

    def _with_function(self) -> AttemptSpec:
        if self.large_function is None:
            return self.attempt
        attempt = replace(self.attempt, function=self.large_function.value)
        with suppress(AttributeError):  # Spark's process lives on, and would keep it.
            del self.large_function._value  # type: ignore[union-attr]
        return attempt

    def _connected(
        self,
        me: Peer,
        worker: WorkerProcess,
        awaited: AwaitedAssignment,
        stop: Callable[[bool], None],
        copy: int,
    ) -> LogClient:
        """The agent's end of the channel to the driver."""
        config = self.attempt.config
        return LogClient(
            self.channel,
            me,
            relay_output=config.driver_log_verbosity == "all",
            echo_output=not self.single_host,
            fence_seconds=2 * config.heartbeat_timeout_seconds,
            is_patient=self.single_host,
            copy=copy,
            on_assignment=awaited.answer,
            on_stop=stop,
            on_request=worker.request_stop,
            on_preempt=worker.preempt,
            on_growth=worker.request_growth,
            on_stacks=worker.stacks,
        )

    def _rendezvous(self, assignment: Assignment) -> Rendezvous:
        """The address and the secrets by which the ranks of this attempt meet."""
        return Rendezvous(
            address=assignment.address,
            port=assignment.rendezvous_port,
            secret=self.channel.secret_for("rendezvous"),
            peers=frozenset(assignment.peers),
            num_proc=assignment.world.size,
            attempt=self.attempt,
            servers=assignment.servers,
            copy_port=assignment.copy_port,
        )

    def _heard(self, client: LogClient, world: World, outcome: Outcome) -> Outcome:
        """The outcome with the channel's notes.

        Raises:
            UnheardFailureError: The rank failed, and the driver has not heard of it: Spark tells.
        """
        if outcome.is_failure and not client.driver_has_heard():
            if outcome.is_communication_error:
                # Spark reports only the task that fails first. That should be the cause's.
                time.sleep(3 * SETTLE_SECONDS)
            raise UnheardFailureError.of(outcome)
        notes = outcome.notes + client.notes(world)
        if outcome.status == Status.STOPPED and client.fence:
            return replace(outcome, notes=notes, message=client.fence)
        return replace(outcome, notes=notes)

    def _own_address(self, context: Any) -> tuple[str, str]:
        if self.single_host:
            return network.LOOPBACK, network.interface_of(network.LOOPBACK) or "lo"
        interface = self.attempt.config.network_interface
        if interface is not None:
            own = network.address_on(interface)
            if own is None:
                raise LaunchError(
                    f"Host {socket.gethostname()} has no address on network_interface="
                    f"{interface!r}: set it to an interface that all hosts have, or to a network "
                    "such as '10.1.0.0/16' where their names differ."
                )
            return own
        if not self.is_barrier:  # Only a barrier task is told how Spark knows its host.
            return network.own_address(network.source_address(network.resolve(self.channel.host)))
        advertised = context.getTaskInfos()[context.partitionId()].address
        return network.own_address(network.split_host_port(advertised)[0])

    def _exchange(self, context: Any, own: list[Peer]) -> dict[int, Assignment]:
        """Tells all agents of this task's and learns of all, by Spark's barrier.

        Raises:
            RunnerError: The stage has none.
        """
        if not self.is_barrier:
            raise RunnerError(
                f"Host {own[0].host} does not reach the driver at {self.channel.host}:"
                f"{self.channel.port}, by which ranks find one another where Spark starts no "
                "barrier stage (gang='tasks'): let it connect to that port (RunConfig.port_range "
                "says which are taken), or name a network that both have with "
                "RunConfig.network_interface."
            )
        messages = context.allGather(json.dumps([peer.to_json() for peer in own]))
        return assignments_of(
            [Peer.from_json(peer) for message in messages for peer in json.loads(message)],
            backend=self.attempt.backend,
            attempt=self.attempt.number,
            version=self.version,
        )


def _folder_of_files() -> str:
    """Where Spark has put the files that were sent to this host."""
    from pyspark import SparkFiles

    return str(SparkFiles.getRootDirectory())


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
