"""``python -m sparkdl_runner.doctor.session``: a Spark session, looked at from a child process.

A JVM that hangs or dies takes only this process along. Answers in JSON lines: ``session``, then
``stage``; either may be ``{"error": …}`` instead.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

SETTINGS = (
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.driver.port",
    "spark.dynamicAllocation.enabled",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.executor.resource.gpu.amount",
    "spark.task.resource.gpu.amount",
    "spark.task.cpus",
    "spark.local.dir",
)
"""What the report may show, and no other: settings hold secrets as well."""

MOST_TASKS = 512
# Executors that register within this time after the first are looked at as well.
SETTLE_SECONDS = 2.0


def main() -> None:
    """Starts a session as it was asked to, and looks around in it."""
    # Spark's JVM and Python write to the standard output; what is said there is not ours.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**facts: Any) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="sparkdl-lifeline", daemon=True).start()
    try:
        context = _start(request)
        session = _describe(context, request)
    except BaseException as error:
        tell(session={"error": f"{type(error).__name__}: {error}"[-4000:]})
        return
    tell(session=session)
    if session["dynamic_allocation"]:
        tell(stage={"skipped": "dynamic allocation is on"})
    elif not session["slots"]:
        tell(stage={"skipped": "there is no slot to run it in"})
    else:
        try:
            tell(stage={"hosts": _look_around(context, request, session)})
        except BaseException as error:
            tell(stage={"error": _explain(error, context)})
    # The parent ends this process when it has the answers, or gave up waiting for them.
    threading.Event().wait()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _start(request: dict[str, Any]) -> SparkContext:
    from pyspark import SparkConf, SparkContext

    submitted = [item for pair in request["conf"] for item in ("--conf", "=".join(pair))]
    if submitted:
        given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        import shlex

        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(submitted)} {given}"
    # Starts the JVM, which reads what Spark is configured to.
    SparkContext._ensure_initialized()
    configuration = SparkConf()
    configured = configuration.get("spark.master", "local[*]")
    master = request["master"] or configured
    if not request["master"] and configured == "local[*]":
        # Spark's own default where nobody has chosen.
        master = f"local[{request['np']}]"
        configuration.setIfMissing("spark.driver.host", "127.0.0.1")
        configuration.setIfMissing("spark.driver.bindAddress", "127.0.0.1")
    configuration.setMaster(master).setAppName("sparkdl-runner doctor")
    configuration.set("spark.ui.showConsoleProgress", "false")
    configuration.set("spark.ui.enabled", "false")
    return SparkContext.getOrCreate(configuration)


def _describe(context: SparkContext, request: dict[str, Any]) -> dict[str, Any]:
    from sparkdl_runner.driver import encryption, gpu_scheduling, slots
    from sparkdl_runner.driver.spark_context import is_single_host
    from sparkdl_runner.errors import LaunchError

    context.setLogLevel("ERROR")
    settings = context.getConf()
    gpu_obstacle, profile = None, None
    try:
        profile = gpu_scheduling.rank_profile(context)
    except LaunchError as error:
        gpu_obstacle = str(error)
    single_host = is_single_host(context)
    return {
        "master": context.master,
        "version": context.version,
        "java": str(context._jvm.System.getProperty("java.version")),  # type: ignore[union-attr]
        "python": platform.python_version(),
        "worker_python": context.pythonExec,
        "single_host": single_host,
        "settings": {name: settings.get(name) for name in SETTINGS if settings.get(name)},
        "encryption": [
            name for name in encryption.SETTINGS if (settings.get(name) or "").lower() == "true"
        ],
        "dynamic_allocation": (settings.get("spark.dynamicAllocation.enabled") or "").lower()
        == "true",
        "gpu_obstacle": gpu_obstacle,
        "slots": _wait_for_slots(
            lambda: slots.count_slots(context, profile),
            request["np"],
            0.0 if single_host else request["executor_seconds"],
        ),
    }


def _wait_for_slots(count: Any, wanted: int, seconds: float) -> int:
    """Waits for as many slots as are wanted, and then until no more come."""
    deadline = time.monotonic() + seconds
    available, since = int(count()), time.monotonic()
    while time.monotonic() < deadline:
        if available >= wanted and time.monotonic() - since >= SETTLE_SECONDS:
            break
        time.sleep(0.25)
        if (now := int(count())) != available:
            available, since = now, time.monotonic()
    return available


def _look_around(
    context: SparkContext, request: dict[str, Any], session: dict[str, Any]
) -> list[dict[str, Any]]:
    from pyspark import cloudpickle

    from sparkdl_runner.doctor import stage
    from sparkdl_runner.driver import gpu_scheduling, spark_job
    from sparkdl_runner.driver.spark_launcher import _listen_on_driver
    from sparkdl_runner.errors import LaunchError

    # Executors may lack this package, and then say so.
    cloudpickle.register_pickle_by_value(stage)  # type: ignore[no-untyped-call]
    listener, host = _listen_on_driver(context)
    token = stage.new_token()
    door = stage.Door(listener, token)
    if session["single_host"]:
        spark_job.let_the_jvm_exit(context)
    task = stage.HostTask(
        token=token,
        driver=(host, door.port),
        single_host=session["single_host"],
        driver_prefix=sys.prefix,
        script=request["script"],
        request=request["host_request"],
    )
    tasks = min(session["slots"], MOST_TASKS)
    ranks = context.parallelize(range(tasks), tasks)
    try:
        profile = gpu_scheduling.rank_profile(context)
    except LaunchError:
        profile = None
    if profile is not None:
        ranks = ranks.withResources(profile)
    try:
        return [json.loads(answer) for answer in ranks.barrier().mapPartitions(task).collect()]
    finally:
        door.close()


def _explain(error: BaseException, context: SparkContext) -> str:
    """Spark's two hundred lines of Java, as the sentence that matters."""
    from sparkdl_runner.driver import spark_failure

    text = str(error)
    for pattern in (
        r'Cannot run program "[^"]*"[^\n]*',
        r"Python in worker has different version[^\n]*",
        r"\[PYTHON_VERSION_MISMATCH\][^\n]*",
    ):
        if found := re.search(pattern, text):
            return found.group(0)
    if isinstance(error, Exception):
        return str(spark_failure.explain(error, python=context.pythonExec)).partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:600]


if __name__ == "__main__":
    main()
