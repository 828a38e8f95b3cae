"""``python -m sparkdl_runner.doctor.session``: a Spark session, looked at from a child process.

A JVM that hangs or dies takes only this process along. Answers in JSON lines: ``session``, then
``stage``; either may be ``{"error": …}`` instead.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparkdl_runner.doctor import scripts
from sparkdl_runner.doctor.installation import find_installation
from sparkdl_runner.doctor.question import YARN_ATTEMPTS, Question, unpack_seconds
from sparkdl_runner.doctor.tracking_server import health_page

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile

MOST_TASKS = 512
# Executors that register within this time after the last are looked at as well.
SETTLE_SECONDS = 2.0


def main() -> None:
    """Starts a session as it was asked to, and looks around in it."""
    # Spark's JVM and Python write to the standard output; answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**facts: Any) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    request = json.loads(sys.stdin.readline())
    question = Question(**request["question"])
    threading.Thread(target=_end_with_parent, name="sparkdl-lifeline", daemon=True).start()
    if remote := find_installation(question).remote:
        from sparkdl_runner.doctor.connect_session import look_through_connect

        asked = request_of_executors(request["host"], question)
        try:
            look_through_connect(question, asked, remote, tell)
        except BaseException as error:
            tell(session={"error": str(error) or type(error).__name__})
        threading.Event().wait()  # As below.
    try:
        context = _start(question)
        session = _describe(context, question)
    except BaseException as error:
        tell(session={"error": f"{type(error).__name__}: {error}"[-4000:]})
        return
    tell(session=session)
    if session["is_dynamic"] and "slots" in session["refusals"]:
        tell(stage={"skipped": "so many tasks never have slots"})
    elif not session["is_dynamic"] and not session["slots"]:
        tell(stage={"skipped": "there is no slot to run it in"})
    else:
        try:
            tell(stage=_look_around(context, question, request["host"], session))
        except BaseException as error:
            tell(stage=_explain(error, context))
    # The parent ends this process when it has the answers, or gave up waiting for them.
    threading.Event().wait()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _start(question: Question) -> SparkContext:
    from pyspark import SparkConf, SparkContext

    if submitted := submitted_options(question):
        given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(submitted)} {given}"
    # Starts the JVM, which reads what Spark is configured to.
    SparkContext._ensure_initialized()
    configuration = SparkConf()
    configured = configuration.get("spark.master", "local[*]")
    master = question.master or configured
    if not question.master and configured == "local[*]":
        # Spark's own default if no master is set.
        master = f"local[{question.num_proc}]"
        configuration.setIfMissing("spark.driver.host", "127.0.0.1")
        configuration.setIfMissing("spark.driver.bindAddress", "127.0.0.1")
    configuration.setMaster(master).setAppName("sparkdl-runner doctor")
    configuration.set("spark.ui.showConsoleProgress", "false")
    configuration.set("spark.ui.enabled", "false")
    # Executors fetch a task's code from one another too. Where a firewall drops what they send,
    # each fetch would wait for two minutes, and no task would be there to tell of the firewall.
    configuration.setIfMissing("spark.shuffle.io.connectionCreationTimeout", "3s")
    configuration.setIfMissing("spark.shuffle.io.maxRetries", "0")
    return SparkContext.getOrCreate(configuration)


def submitted_options(question: Question) -> list[str]:
    """The options of ``spark-submit`` for what is asked."""
    conf = dict(question.conf)
    if question.master == "yarn":
        # A master that comes when this session was given up finds no driver: it is to be the last.
        conf = {YARN_ATTEMPTS: "1", **conf}
    submitted = [item for pair in conf.items() for item in ("--conf", "=".join(pair))]
    if question.master:  # Spark is told when it starts: only then does YARN get pyspark's files.
        submitted += ["--master", question.master]
    return submitted


def _describe(context: SparkContext, question: Question) -> dict[str, Any]:
    from sparkdl_runner.errors import LaunchError
    from sparkdl_runner.launch.backends import get_backend
    from sparkdl_runner.launch.config import RunConfig
    from sparkdl_runner.launch.driver.spark import allocation, checks, slots
    from sparkdl_runner.launch.driver.spark.context import is_single_host, settings_of
    from sparkdl_runner.launch.driver.spark.task_shape import TaskShape, task_shape

    context.setLogLevel("ERROR")
    longer = unpack_seconds(dict(context.getConf().getAll()))
    config = RunConfig(slot_wait_seconds=RunConfig().slot_wait_seconds + longer)
    checked = checks.refusals(context, get_backend(question.backends[0]), config)
    refusals = {name: str(error) for name, error in checked if error is not None}
    settings, each = settings_of(context).get, 1
    try:
        shape = task_shape(context, config, question.num_proc)
        each = shape.ranks
        if allocation.chosen_gang(settings, config, question.num_proc, ranks_per_task=each):
            slots.wait_for_slots(context, question.num_proc, config, shape=shape)
    except LaunchError as error:
        if str(error) not in refusals.values():
            refusals["slots"] = str(error)
    tasks = TaskShape(_profile(context))
    single_host = is_single_host(context)
    return {
        "master": context.master,
        "num_tasks": question.num_proc // each,
        "version": context.version,
        "java": str(context._jvm.System.getProperty("java.version")),  # type: ignore[union-attr]
        "single_host": single_host,
        "gpus_per_executor": float(
            context.getConf().get("spark.executor.resource.gpu.amount") or 0
        ),
        "is_dynamic": allocation.is_dynamic(settings),
        "encryption": checks.encryption_asked_for(settings),
        "refusals": refusals,
        "is_restarted": _is_restarted(context),
        "slots": _settled(
            lambda: slots.count_places(context, tasks), 0.0 if single_host else SETTLE_SECONDS
        ),
    }


def _is_restarted(context: SparkContext) -> bool:
    """Whether YARN starts this driver, which runs there, again when it ends with an error."""
    from sparkdl_runner.launch.driver.spark.context import settings_of

    settings = settings_of(context)
    is_there = context.master == "yarn" and settings.get("spark.submit.deployMode") == "cluster"
    return is_there and settings.get(YARN_ATTEMPTS) != "1"


def _profile(context: SparkContext) -> ResourceProfile | None:
    """The resources of a rank's task; None also if the check of GPUs refuses the session."""
    from sparkdl_runner.errors import LaunchError
    from sparkdl_runner.launch.driver.spark import gpu_scheduling

    try:
        return gpu_scheduling.rank_profile(context)
    except LaunchError:
        return None


def _settled(count: Callable[[], int], seconds: float) -> int:
    """The number of slots, once it has not changed for so long."""
    available, since = count(), time.monotonic()
    while time.monotonic() < since + seconds:
        time.sleep(0.25)
        if (now := count()) != available:
            available, since = now, time.monotonic()
    return available


def _look_around(
    context: SparkContext, question: Question, request: dict[str, Any], session: dict[str, Any]
) -> dict[str, Any]:
    from pyspark import cloudpickle

    from sparkdl_runner.doctor import stage
    from sparkdl_runner.doctor.meeting import Meeting
    from sparkdl_runner.launch.driver.spark import job
    from sparkdl_runner.launch.driver.spark.context import listen_on_driver

    # Executors may lack this package, and then say so.
    cloudpickle.register_pickle_by_value(stage)  # type: ignore[no-untyped-call]
    listener, host = listen_on_driver(context)
    token = secrets.token_bytes(stage.TOKEN_BYTES)
    server = stage.ProbeServer(listener, token)
    if session["single_host"]:
        job.let_the_jvm_exit(context)
    is_dynamic = session["is_dynamic"]
    tasks = min(session["num_tasks"] if is_dynamic else session["slots"], MOST_TASKS)
    meeting = Meeting(listen_on_driver(context)[0], token, tasks) if is_dynamic else None
    task = stage.HostTask(
        token=token,
        driver=(host, server.port),
        single_host=session["single_host"],
        driver_prefix=sys.prefix,
        script=scripts.text_of("host"),
        request=request_of_executors(request, question),
        meeting_port=meeting.port if meeting else None,
    )
    ranks = context.parallelize(range(tasks), tasks)
    profile = _profile(context)
    if profile is not None:
        ranks = ranks.withResources(profile)
    try:
        if meeting is not None:
            return meeting.answers(ranks.mapPartitions(task).collect, context.cancelAllJobs)
        answers = ranks.barrier().mapPartitions(task).collect()
        return {"hosts": [json.loads(answer) for answer in answers]}
    finally:
        server.close()
        if meeting is not None:
            meeting.close()


def request_of_executors(request: dict[str, Any], question: Question) -> dict[str, Any]:
    """The request to ``scripts/host.py`` on the driver, and what executors alone are asked."""
    page = health_page(question.tracking_uri)
    return {
        **request,
        "scripts": {name: scripts.text_of(name) for name in ("native", "folder")},
        "servers": [page] if page else [],
        "folders": question.folders,
    }


def _explain(error: BaseException, context: SparkContext) -> dict[str, str]:
    """Why the stage failed, as the launcher would say it."""
    from sparkdl_runner.errors import LaunchError
    from sparkdl_runner.launch.driver.spark import failure

    if isinstance(error, LaunchError) or not isinstance(error, Exception):
        return {"error": str(error) or type(error).__name__}
    explained = failure.explain(error, python=context.pythonExec)
    kind = "python_error" if isinstance(explained, LaunchError) else "error"
    return {kind: str(explained).partition("\n")[0]}


if __name__ == "__main__":
    main()
