"""Did a Spark session start, and could it run a gang?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkdl_runner.doctor.findings.checks import SESSION, START
from sparkdl_runner.doctor.findings.finding import (
    Finding,
    not_checked,
    ok,
    problem,
    refused,
    warning,
)
from sparkdl_runner.doctor.question import YARN_ATTEMPTS
from sparkdl_runner.launch.driver.spark import java


@START("spark.start", expected="a session")
def start(session: dict[str, Any]) -> Finding:
    """Whether the session started."""
    if "skipped" in session:
        return not_checked(
            f"no session was started: {session['skipped']}", advice=session.get("advice", "")
        )
    if "error" not in session:
        # A Spark Connect server's is not told.
        java_too = f", Java {session['java']}" if session["java"] else ""
        version = f"Spark {session['version']}{java_too}"
        return ok(f"a session on {session['master']}: {version}")
    reason, advice = java.why_not_started(session["error"], session["output"])
    return problem(
        f"The session did not start: {reason}.",
        advice=advice
        or "Correct what the other findings name; then start pyspark by hand, which shows all that "
        "Spark writes.",
    )


@SESSION("spark.allocation", expected="executors that stay, or that come for the ranks' tasks")
def allocation(session: dict[str, Any]) -> Finding:
    """Whether executors may come and go."""
    fine = "dynamic allocation is off"
    if session["is_dynamic"]:
        fine = "dynamic allocation is on: ranks are ordinary tasks (RunConfig.gang='tasks')"
    return _launchers(session, "allocation", fine=fine)


@SESSION("spark.slots", expected="a slot for each rank")
def slots(session: dict[str, Any]) -> Finding:
    """Whether enough tasks can run at once."""
    fine = f"{session['slots']} task slots on {session['master']}, {session['num_tasks']} needed"
    if session["is_dynamic"]:
        fine += ", for which executors come with a run"
    finding = _launchers(session, "slots", fine=fine)
    if not finding.advice or session["single_host"]:
        return finding
    advice, gpus = finding.advice, session["gpus_per_executor"]
    if session["slots"] == 0 and not advice.startswith("Lower spark."):
        advice = (
            "No executor has registered: look at the cluster's own page for free cores, memory"
            f"{' and GPUs' if gpus else ''}, and at the executors' logs. An executor must reach "
            "the driver at spark.driver.host and spark.driver.port."
        )
    if gpus:
        advice += (
            f" Executors are asked to have {gpus:g} GPU(s) each "
            "(spark.executor.resource.gpu.amount); hosts without them get none: look whether their "
            "discovery script lists GPUs."
        )
    return replace(finding, advice=advice)


@SESSION(
    "spark.encryption", expected="no encryption asked for, or a network that encrypts by itself"
)
def encryption(session: dict[str, Any]) -> Finding:
    """Whether Spark's network is to be encrypted, which no backend's is."""
    asked = session["encryption"]
    fine = f"{asked[0]} is true; all is on this host" if asked else "none asked for"
    return _launchers(session, "encryption", fine=fine)


@SESSION("gpu.amounts", expected="one GPU for each rank")
def gpu_amounts(session: dict[str, Any]) -> Finding | None:
    """Whether each rank gets a GPU of its own, where executors have some."""
    return _launchers(session, "gpus") if "gpus" in session["refusals"] else None


@SESSION("spark.idle_timeout", expected="tasks that may be silent for as long as they run")
def idle_timeout(session: dict[str, Any]) -> Finding | None:
    """Whether Spark would kill ranks for their silence."""
    name = "idle_timeout"
    return _launchers(session, name) if name in session["refusals"] else None


@SESSION("yarn.attempts", expected=f"{YARN_ATTEMPTS}=1 in cluster mode")
def yarn_attempts(session: dict[str, Any]) -> Finding | None:
    """Whether YARN starts a driver again that has failed, the doctor's as well."""
    if not session["is_restarted"]:
        return None
    return warning(
        f"{YARN_ATTEMPTS} is not 1: YARN starts a driver that ends with an error again, this "
        "doctor as well.",
        advice=f"Submit with conf/yarn/submit.sh, or with --conf {YARN_ATTEMPTS}=1. What can go on "
        "is started again by the run itself (RunConfig.max_restarts).",
    )


@SESSION("spark.python", expected="a Python of the driver's version, and one path, on every host")
def executors_python(session: dict[str, Any]) -> Finding | None:
    """Whether executors could start their Python."""
    reason = session["stage"].get("python_error")
    return refused(reason) if reason else None


@SESSION("spark.executors", expected="every executor answers")
def executors(session: dict[str, Any]) -> Finding | None:
    """Whether executors ran a stage at all."""
    stage = session["stage"]
    if "skipped" in stage:
        return not_checked(
            f"executors were not looked at: {stage['skipped']}.",
            advice="Correct that, and run this again.",
        )
    kind = "stage" if session["is_dynamic"] else "barrier stage"
    if "error" in stage:
        return problem(
            f"A {kind} failed: {stage['error']}",
            advice="Look at the executors' logs, on the cluster's own page; a lost executor is "
            "most often one that ran out of memory.",
        )
    if "python_error" in stage:
        return None
    hosts = len({answer["host"] for answer in stage["hosts"]})
    ran = f"{len(stage['hosts'])} on {hosts} host(s) ran a {kind}"
    if session["is_dynamic"] and stage["tasks"] < session["num_tasks"]:
        return warning(
            f"{ran}, of which {stage['tasks']} of {session['num_tasks']} tasks had a slot in time.",
            advice="A run waits for longer, and tries again (RunConfig.start_timeout_seconds, "
            "slot_wait_seconds). Look at the cluster's own page for free cores, memory and GPUs.",
        )
    return ok(ran)


def _launchers(session: dict[str, Any], name: str, *, fine: str = "") -> Finding:
    """The result of the launcher's own check of that name."""
    refusal = session["refusals"].get(name)
    return refused(refusal) if refusal else ok(fine)
