"""A session of Spark Connect, looked at as the launcher would use it."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from sparkdl_runner.doctor import scripts, stage
from sparkdl_runner.doctor.meeting import Meeting
from sparkdl_runner.doctor.question import Question
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.connect.by_value import send_by_value
from sparkdl_runner.launch.driver.connect.launcher import ConnectLauncher
from sparkdl_runner.launch.driver.connect.probe import slots_of
from sparkdl_runner.launch.driver.connect.session import in_a_sentence, setting, start_session
from sparkdl_runner.launch.driver.spark import allocation, checks
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire import network

Tell = Callable[..., None]


def look_through_connect(
    question: Question, request: dict[str, Any], remote: str, tell: Tell
) -> None:
    """Tells of the session and of its executors, as ``doctor.session`` does of a classic one.

    Args:
        question: The run that is planned.
        request: What executors are asked.
        remote: The server's address, as SPARK_REMOTE has it.
        tell: Gets ``session``, then ``stage``.

    Raises:
        LaunchError: The session, or its executors, cannot be used.
    """
    os.environ["SPARK_REMOTE"] = remote
    session = start_session()
    config, stop, asked = RunConfig(), StopRequest(), partial(setting, session)
    launcher = ConnectLauncher(question.num_proc, get_backend(question.backends[0]), config, stop)
    refusals = {}
    try:
        launcher.wait_for_slots(config, stop)
    except LaunchError as error:
        refusals["slots"] = str(error)
    num_tasks = question.num_proc // launcher.ranks_per_task
    slots = slots_of(session) or num_tasks
    is_dynamic, single_host = allocation.is_dynamic(asked), launcher.is_single_host
    tell(
        session={
            "master": f"{asked('spark.master')} through Spark Connect",
            "num_tasks": num_tasks,
            "version": session.version,
            "java": "",
            "single_host": single_host,
            "gpus_per_executor": float(asked("spark.executor.resource.gpu.amount") or 0),
            "encryption": checks.encryption_asked_for(asked),
            "refusals": refusals,
            "is_restarted": False,
            "is_dynamic": is_dynamic,
            "slots": slots,
        }
    )
    if launcher.address is None:
        tell(stage={"skipped": "they do not reach this client, which hears of ranks by a relay"})
    else:
        try:
            with in_a_sentence(session):
                tasks = num_tasks if is_dynamic else slots
                host = launcher.address
                answers = _answers(session, host, tasks, request, single_host, is_dynamic)
        except RunnerError as error:
            tell(stage={"error": str(error)})
        else:
            tell(stage=answers)


def _answers(
    session: Any,
    address: str,
    tasks: int,
    request: dict[str, Any],
    single_host: bool,
    is_dynamic: bool,
) -> dict[str, Any]:
    send_by_value(stage)  # Executors may lack this package, and then say so.
    token = secrets.token_bytes(stage.TOKEN_BYTES)
    server = stage.ProbeServer(network.listen(address), token)
    meeting = Meeting(network.listen(address), token, tasks) if is_dynamic else None
    task = stage.HostTask(
        token=token,
        driver=(address, server.port),
        single_host=single_host,
        driver_prefix=sys.prefix,
        script=scripts.text_of("host"),
        request=request,
        meeting_port=meeting.port if meeting else None,
    )
    rows = session.range(0, tasks, 1, tasks)

    def told() -> list[str]:
        mapped = rows.mapInArrow(stage.HostRows(task), "answer string", barrier=not is_dynamic)
        return [row.answer for row in mapped.collect()]

    try:
        if meeting is not None:
            return meeting.answers(told, session.interruptAll)
        return {"hosts": [json.loads(answer) for answer in told()]}
    finally:
        server.close()
        if meeting is not None:
            meeting.close()
