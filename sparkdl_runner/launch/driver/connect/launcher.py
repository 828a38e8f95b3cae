"""Runs ranks as the tasks of a stage that is asked for through Spark Connect."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError, RunCancelledError, RunnerError
from sparkdl_runner.launch.agent.rank_task import RankTask
from sparkdl_runner.launch.agent.spares.task import SpareTask
from sparkdl_runner.launch.backends import Backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.connect.probe import Surroundings, known, probe
from sparkdl_runner.launch.driver.connect.query import ServerQuery
from sparkdl_runner.launch.driver.connect.rank_rows import SCHEMA, RankRows, outcomes_of
from sparkdl_runner.launch.driver.connect.sent_file import send_file
from sparkdl_runner.launch.driver.connect.session import (
    UNKNOWN,
    in_a_sentence,
    is_stopped_by_user,
    require_session,
    setting,
)
from sparkdl_runner.launch.driver.connect.tunnel import tunnel
from sparkdl_runner.launch.driver.spark import allocation, checks, failure
from sparkdl_runner.launch.driver.spark.assembly import Assembly, Tries
from sparkdl_runner.launch.driver.spark.lent_function import LARGE_BYTES
from sparkdl_runner.launch.driver.spark.slots import POLL_SECONDS, counted
from sparkdl_runner.launch.driver.spark.stage_gang import StageGang
from sparkdl_runner.launch.driver.spark.task_shape import ranks_per_task
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.channel import ChannelAddress
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.rank.reports import Reports

# The value goes through the server's heap, whose size is not told.
MOST_RESULT_BYTES = 64 << 20
# How long a server may take to start a stage, beyond the wait for slots.
START_SECONDS = 30.0
# How soon a session that is stopped says so, once its server has cancelled what ran.
STOPPED_SECONDS = 1.0


class ConnectLauncher:
    """The ``Launcher`` of a Spark Connect session.

    Args:
        num_proc: How many ranks; 0 for as many as there are slots at the first attempt.
        backend: What they use.
        config: Says how long to wait for slots, and what of the session is accepted.
        stop: May end the first look at the executors, which waits for a free slot.

    Raises:
        LaunchError: There is no session, or it is refused.
        RunCancelledError: ``stop`` was cancelled.
    """

    def __init__(
        self, num_proc: int, backend: Backend, config: RunConfig, stop: StopRequest
    ) -> None:
        self._session = require_session()
        self._setting = partial(setting, self._session)
        self._num_proc = num_proc
        self._backend = backend
        self._surroundings = known(self._session, config, backend.imports, stop)
        _check_gpus(self._setting)
        checks.check_settings(self._setting, backend, config, single_host=self.is_single_host)
        self.ranks_per_task = each = ranks_per_task(self._setting, config, num_proc)
        self._is_barrier = allocation.chosen_gang(
            self._setting, config, num_proc, ranks_per_task=each
        )
        self._is_dynamic = not self._is_barrier and allocation.is_dynamic(self._setting)
        _check_channel(self._surroundings, self._is_barrier)
        self.application_id = self._setting("spark.app.id")

    @property
    def address(self) -> str | None:
        """This host's address that all executors reach; None if there is none."""
        return self._surroundings.address

    @property
    def is_single_host(self) -> bool:
        """See ``Launcher.is_single_host``."""
        return self._surroundings.is_single_host

    def run(
        self, attempt: AttemptSpec, reports: Sequence[Reports], stop: StopRequest
    ) -> list[Outcome]:
        """See ``Launcher.run``."""
        if attempt.is_restart:
            self._surroundings = self._probe(attempt.config, stop)
        needed = self.wait_for_slots(attempt.config, stop)
        self._num_proc = self._num_proc or needed
        tries = Tries(attempt.config, self._setting, stop)
        while True:
            gang = ConnectGang(
                self._session,
                self._surroundings,
                attempt,
                needed,
                reports,
                is_barrier=self._is_barrier,
                ranks_per_task=self.ranks_per_task,
            )
            with stop.told_to(gang.request_stop, gang.interrupt):
                try:
                    return gang.run()
                except RunnerError:
                    if (there := gang.assembly.given_back) is None:
                        raise
                    needed = tries.next_size(there, needed, has_slots=False)

    def keep_out(self, ranks: Collection[int]) -> str:
        """See ``Launcher.keep_out``."""
        return "a client of Spark Connect cannot choose executors"

    def _probe(self, config: RunConfig, stop: StopRequest) -> Surroundings:
        return probe(self._session, config, self._backend.imports, stop)

    def wait_for_slots(self, config: RunConfig, stop: StopRequest) -> int:
        """How many ranks are started, once there are slots for them.

        Raises:
            LaunchError: There are too few.
            RunCancelledError: ``stop`` was cancelled.
        """
        if self._is_dynamic:  # Executors come once tasks wait for them.
            return self._num_proc
        least, each = config.min_num_proc, self.ranks_per_task
        deadline = time.monotonic() + (0 if self.is_single_host else config.slot_wait_seconds)
        while True:
            if self._surroundings.slots is None:
                if self._num_proc:
                    return self._num_proc
                raise LaunchError(
                    "num_proc is 0, for as many ranks as there are slots, and this server does "
                    "not tell how many there are (spark.default.parallelism is set): give a number."
                )
            places = each * self._surroundings.slots
            if places >= (self._num_proc or least or 1):
                return self._num_proc or places
            if time.monotonic() > deadline:
                break
            stop.cancelled.wait(POLL_SECONDS)
            stop.raise_if_cancelled()
            self._surroundings = self._probe(config, stop)
        if least is not None and places >= least:
            return places
        needed = self._num_proc or least or 1
        raise LaunchError(
            f"{needed} ranks need {-(-needed // each)} task slots at once, and the cluster has "
            f"{places // each} (master {self._setting('spark.master')}): ask for at most "
            f"{counted(places, 'rank', 'ranks')}, or add executors or cores where the server "
            "is started."
        )


class ConnectGang(StageGang):
    """Ranks as tasks that a Spark Connect server runs.

    Args:
        session: The session.
        surroundings: Says where this client is reached.
        attempt: See ``Gang``, as for the rest.
        num_proc: The same.
        reports: The same.
        is_barrier: Whether the server starts all tasks at once.
        ranks_per_task: How many ranks each task has.
    """

    def __init__(
        self,
        session: Any,
        surroundings: Surroundings,
        attempt: AttemptSpec,
        num_proc: int,
        reports: Sequence[Reports],
        *,
        is_barrier: bool,
        ranks_per_task: int,
    ) -> None:
        self._session = session
        self._surroundings = surroundings
        self.assembly = Assembly(attempt.config, num_proc)
        address = surroundings.address or network.LOOPBACK
        super().__init__(
            attempt,
            num_proc,
            reports,
            listener=network.listen(address, attempt.config.port_range),
            host="" if surroundings.address is None else address,
            is_barrier=is_barrier,
            ranks_per_task=ranks_per_task,
        )

    def submit(self, stack: ExitStack) -> ServerQuery[list[Outcome]]:
        """See ``StageGang.submit``."""
        channel = self._channel(stack)
        tasks = self._session.range(0, self.num_tasks, 1, self.num_tasks)
        ends = tasks.mapInArrow(RankRows(self._rank_task(channel)), SCHEMA, barrier=self.is_barrier)
        self._query = ServerQuery(
            self._session,
            lambda: outcomes_of(ends.collect()),
            slots=self.num_tasks,
            # Tasks that are no barrier stage are started one by one, which the assembly watches.
            start_seconds=START_SECONDS + self.attempt.config.slot_wait_seconds
            if self.is_barrier
            else math.inf,
            has_begun=lambda: not self.watch.unheard(),
        )
        stack.callback(self._query.close)
        return self._query

    def lost_slots(self, there: int, seconds: float) -> str | None:
        """See ``Gang.lost_slots``."""
        return None if self.is_barrier else self.assembly.shortage(there, seconds)

    def cancel_job(self) -> None:
        """See ``StageGang.cancel_job``."""
        self._query.cancel()

    def application_end(self) -> str:
        """See ``StageGang.application_end``."""
        if is_stopped_by_user(self._session):
            return "its session was stopped"
        return "its server does not answer" if self._query.server_is_lost else ""

    def executor_loss(self, error: Exception) -> str:
        """See ``StageGang.executor_loss``."""
        return failure.executor_loss(error)

    def explained(
        self, error: Exception, failures: Sequence[Outcome], application_end: str
    ) -> RunnerError:
        """See ``StageGang.explained``."""
        if isinstance(error, RunnerError):  # The query was given up.
            return error
        if self._session.is_stopped and not application_end:
            return RunnerError(UNKNOWN)
        explained = failure.explain(
            error, python="python3", failures=failures, application_end=application_end
        )
        # The server cancels the query of a session before the client takes that for stopped.
        deadline = time.monotonic() + STOPPED_SECONDS
        is_cancelled = isinstance(explained, RunCancelledError)
        while is_cancelled and not application_end and time.monotonic() < deadline:
            if end := self.application_end():
                return self.explained(error, failures, end)
            time.sleep(0.05)
        return explained

    def _channel(self, stack: ExitStack) -> ChannelAddress:
        """The way on which agents report: straight, by a relay, or none."""
        around = self._surroundings
        if around.address is not None:
            return self.server.channel
        if around.no_relay:
            tell(
                "the executors do not reach this client, so that nothing is heard of the ranks "
                "before they have ended: no output, no metrics, no progress, no hang. No relay "
                f"helps: {around.no_relay}."
            )
            return self.server.channel
        with in_a_sentence(self._session):
            config = self.attempt.config
            host, port = stack.enter_context(tunnel(self._session, config, self.server.address))
        tell(
            "the executors do not reach this client: what the ranks say comes by a relay beside "
            f"the server's driver, at {host}:{port}."
        )
        return replace(self.server.channel, host=host, port=port)

    def _rank_task(self, channel: ChannelAddress) -> RankTask:
        attempt, function = self.attempt, None
        if len(attempt.function) >= LARGE_BYTES:
            with in_a_sentence(self._session):
                function = send_file(self._session, attempt.function)
            attempt = replace(attempt, function=b"")
        return RankTask(
            attempt=attempt,
            large_function=function,
            channel=channel,
            is_barrier=self.is_barrier,
            single_host=self._surroundings.is_single_host,
            most_result_bytes=MOST_RESULT_BYTES,
            # The channel is in clear.
            sends_value=not checks.encryption_asked_for(partial(setting, self._session)),
            spare=SpareTask(
                backend=attempt.backend,
                variables=attempt.variables,
                seconds=attempt.spare_seconds,
                spark_set_threads=self.ranks_per_task > 1,
                ranks=self.ranks_per_task,
            ),
        )


def _check_channel(around: Surroundings, is_barrier: bool) -> None:
    """Refuses tasks that find one another by the driver alone, where they do not reach it."""
    if not is_barrier and around.address is None and around.no_relay:
        raise LaunchError(
            "The executors do not reach this client, by which ranks find one another where Spark "
            f"starts no barrier stage (gang='tasks'), and no relay helps: {around.no_relay}. Run "
            "the client where executors reach it, or start the server without "
            f"{allocation.DYNAMIC}."
        )


def _check_gpus(setting: allocation.Settings) -> None:
    """Refuses executors whose GPUs ranks would share: no stage asks for its own through Connect."""
    per_executor = int(setting("spark.executor.resource.gpu.amount") or 0)
    per_task = float(setting("spark.task.resource.gpu.amount") or 0)
    if per_executor and per_task < 1:
        raise LaunchError(
            f"The server's executors have {per_executor} GPU(s) each, and a task gets "
            f"{per_task:g} of one, so ranks would share GPUs or get none: start the server with "
            "spark.task.resource.gpu.amount=1. Only a classic session asks for one GPU a rank by "
            "itself."
        )
