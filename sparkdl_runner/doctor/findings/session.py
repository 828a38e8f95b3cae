"""What a Spark session says about itself: did it start, and could it run a gang?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sparkdl_runner.doctor.findings.finding import Finding, not_checked, ok, problem

_KNOWN_REASONS = (
    (
        r"All masters are unresponsive|Could not connect to|Failed to connect to master",
        "no Spark master answers there",
        (
            "Look whether the master runs and its port is open from here, and compare the address "
            "with what the master's web page shows."
        ),
    ),
    (
        r"UnsupportedClassVersionError",
        "the Java is too old for this Spark",
        "Set JAVA_HOME to the Java that the finding 'java' asks for.",
    ),
    (
        r"Cannot assign requested address|Service 'sparkDriver' could not bind",
        "the driver cannot bind the address that it was told",
        "Set spark.driver.bindAddress (or SPARK_LOCAL_IP) to an address of this host.",
    ),
    (
        r"UnknownHostException",
        "a host name leads nowhere",
        "Mend /etc/hosts or the DNS, or set SPARK_LOCAL_HOSTNAME or SPARK_LOCAL_IP.",
    ),
    (
        r"No space left on device",
        "a disk is full",
        "Make room, or point spark.local.dir and TMPDIR to a disk that has some.",
    ),
    (
        r"HADOOP_CONF_DIR|YARN_CONF_DIR",
        "Spark does not find YARN's configuration",
        "Set HADOOP_CONF_DIR to the folder of the cluster's core-site.xml and yarn-site.xml.",
    ),
)


def judge_start(session: dict[str, Any], words: Sequence[str]) -> Finding:
    """Whether the session started.

    Args:
        session: The child's answer.
        words: What it and its JVM wrote.
    """
    check = "spark.start"
    if "error" not in session:
        master, version, java = session["master"], session["version"], session["java"]
        return ok(check, f"a session on {master}: Spark {version}, Java {java}")
    text = "\n".join([session["error"], *words])
    for pattern, meaning, advice in _KNOWN_REASONS:
        found = re.search(rf"[^\n]*(?:{pattern})[^\n]*", text)
        if found:
            return problem(
                check,
                f"The session did not start: {meaning} ({_short(found.group(0))}).",
                expected="a session",
                advice=advice,
            )
    return problem(
        check,
        f"The session did not start: {_last_reason(session['error'], words)}.",
        expected="a session",
        advice="Mend what the other findings name; then start pyspark by hand, which shows all of "
        "Spark's words.",
    )


def judge_settings(
    session: dict[str, Any], *, num_proc: int, backends: Sequence[str]
) -> Iterator[Finding]:
    """Whether the session's settings and slots allow a gang."""
    if session["dynamic_allocation"]:
        yield problem(
            "spark.allocation",
            "spark.dynamicAllocation.enabled is true, with which clusters start no barrier stage.",
            expected="a cluster of a fixed size",
            advice="Set spark.dynamicAllocation.enabled to false and give the cluster a fixed size "
            "(spark.executor.instances).",
        )
    else:
        yield ok("spark.allocation", "dynamic allocation is off")
    yield judge_slots(session, num_proc)
    if session["encryption"] and not session["single_host"]:
        yield problem(
            "spark.encryption",
            f"{session['encryption'][0]} is true, and {' and '.join(backends)} can encrypt nothing "
            "that ranks send one another.",
            expected="no encryption asked for, or a network that encrypts by itself",
            advice="Run on one host, put the hosts into a network that encrypts by itself "
            "(WireGuard, IPsec, the cloud's own), or accept it with "
            "RunConfig(allow_unencrypted=True).",
        )
    elif session["encryption"]:
        yield ok("spark.encryption", f"{session['encryption'][0]} is true; all is on this host")
    else:
        yield ok("spark.encryption", "none asked for")
    if session["gpu_obstacle"]:
        yield problem(
            "gpu.amounts",
            session["gpu_obstacle"].rpartition(" Set ")[0],
            expected="one GPU for each rank",
            advice="Set spark.task.resource.gpu.amount to 1.",
        )


def judge_slots(session: dict[str, Any], num_proc: int) -> Finding:
    """Whether enough tasks can run at once."""
    check, available = "spark.slots", session["slots"]
    found = f"{available} task slots on {session['master']}"
    if available >= num_proc:
        return ok(check, f"{found}, {num_proc} needed")
    gpus = session["settings"].get("spark.executor.resource.gpu.amount")
    if session["single_host"]:
        advice = f"Start the session with .master('local[{num_proc}]')."
    elif available == 0:
        advice = (
            "No executor has registered: look at the cluster's own page for free cores, memory"
            f"{' and GPUs' if gpus else ''}, and at the executors' logs. An executor must reach "
            "the driver at spark.driver.host and spark.driver.port."
        )
    else:
        advice = (
            "Add executors or cores (spark.executor.instances, spark.executor.cores, "
            "spark.cores.max), or lower spark.task.cpus or spark.task.resource.gpu.amount; or ask "
            f"for at most {available} ranks."
        )
    if gpus and not session["single_host"]:
        advice += (
            f" Executors are asked to have {gpus} GPU(s) each (spark.executor.resource.gpu.amount);"
            " hosts without them get none: look whether their discovery script lists GPUs."
        )
    return problem(
        check,
        f"{found}, and {num_proc} ranks need {num_proc} at once.",
        expected=f"{num_proc} or more",
        advice=advice,
    )


def judge_stage(stage: dict[str, Any], session: dict[str, Any]) -> Finding:
    """Whether executors ran a barrier stage at all."""
    check = "spark.executors"
    if "skipped" in stage:
        return not_checked(
            check,
            f"executors were not looked at: {stage['skipped']}.",
            advice="Mend that, and run this again.",
        )
    if "error" not in stage:
        hosts = len({answer["host"] for answer in stage["hosts"]})
        return ok(check, f"{len(stage['hosts'])} on {hosts} host(s) ran a barrier stage")
    error, python = stage["error"], session["worker_python"]
    if "different version" in error or "PYTHON_VERSION_MISMATCH" in error:
        return problem(
            "spark.python",
            f"Executors start {python}, another version of Python than the driver's "
            f"{session['python']} ({_short(error)}).",
            expected=f"Python {'.'.join(session['python'].split('.')[:2])} everywhere",
            advice="Set PYSPARK_PYTHON to a Python of the driver's version that all hosts have, "
            "before the session starts, or send one along (--archives with venv-pack).",
        )
    if "Cannot run program" in error or "No such file or directory" in error:
        return problem(
            "spark.python",
            f"Executors cannot start {python}: {_short(error)}.",
            expected="a Python that is there on every host, at that path",
            advice="Set PYSPARK_PYTHON to a Python that all hosts have, before the session starts.",
        )
    return problem(
        check,
        f"A barrier stage failed: {_short(error)}",
        expected="every executor answers",
        advice="Look at the executors' logs, on the cluster's own page; a lost executor is most "
        "often one that ran out of memory.",
    )


def _last_reason(error: str, words: Sequence[str]) -> str:
    """The words that most probably say why."""
    for line in reversed(words):
        if re.search(r"Caused by: |Exception(:|$)|Error(:|$)", line) and "py4j" not in line:
            return _short(line)
    return _short(error.strip().partition("\n")[0])


def _short(text: str) -> str:
    return text.strip().rstrip(".")[:300]
