"""Has ranks measure how fast the hosts are, in a session of their own."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from sparkdl_runner.doctor.child import Child
from sparkdl_runner.doctor.findings.finding import Finding, not_checked, ok, warning
from sparkdl_runner.doctor.question import Question, unpack_seconds
from sparkdl_runner.launch.config import RunConfig

CHECK = "preflight"
# For a session, and for the ranks that measure.
SECONDS = 180.0 + RunConfig().slot_wait_seconds


def measure(question: Question, master: str) -> Iterator[Finding]:
    """Measures by ``sparkdl-runner preflight``, if that was asked for.

    Args:
        question: The run that is planned.
        master: That of the session that was looked at.
    """
    if not question.preflight:
        advice = "sparkdl-runner doctor --preflight measures it in seconds."
        return iter([not_checked("how fast the hosts are was not asked", advice=advice)])
    backend = "torch" if "torch" in question.backends else question.backends[0]
    ranks = ["--np", str(question.num_proc), "--backend", backend]
    given = [f"--conf={name}={value}" for name, value in question.conf.items()]
    if question.master is not None or (given and master.startswith("local")):
        given.append(f"--master={question.master or master}")
    environment = dict(os.environ)
    if given:  # Else it would pass for a choice of where Spark runs.
        earlier = environment.get("PYSPARK_SUBMIT_ARGS", "").strip().removesuffix("pyspark-shell")
        environment["PYSPARK_SUBMIT_ARGS"] = f"{earlier} {shlex.join(given)} pyspark-shell"
    child = Child(
        [sys.executable, "-m", "sparkdl_runner", "preflight", "--json", *ranks],
        environment=environment,
    )
    with closing(child):
        deadline = time.monotonic() + SECONDS + unpack_seconds(question.conf)
        return findings_of(child.answer(deadline, words=1))


def findings_of(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Makes findings of what the command said.

    Args:
        report: Its document; or ``error`` and nothing else, if it printed none.
    """
    if "findings" not in report:
        error = report["error"]
        reason = error["message"] if isinstance(error, dict) else error
        advice = "sparkdl-runner preflight by hand shows all that Spark writes."
        yield not_checked(f"the ranks that measure have not ended well: {reason}", advice=advice)
        return
    if not report["findings"]:
        yield ok(report["lines"][0].partition(": ")[2])
    for ranks, text, is_bad in report["findings"]:
        keep_out = "Look what else runs there, or keep it out: RunConfig(preflight_excludes=True)."
        advice = keep_out if is_bad else "Make all hosts alike."
        place = report["ranks"][ranks[0]]["place"]
        yield warning(f"{place}: {text}", advice=advice, expected="hosts that are equally fast")
