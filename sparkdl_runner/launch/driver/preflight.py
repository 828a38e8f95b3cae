"""Measures the hosts before a training. A gang of its own does that, on the training's slots."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from sparkdl_runner.base.shown_text import first_line, tell
from sparkdl_runner.errors import LaunchError, RunCancelledError, RunnerError
from sparkdl_runner.launch.agent.spares.pool import end_spares
from sparkdl_runner.launch.driver.calls.call import pack
from sparkdl_runner.launch.driver.calls.spares import SPARE_SECONDS
from sparkdl_runner.launch.driver.diagnosis import result_of
from sparkdl_runner.launch.driver.launcher import Launcher
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.preflight.findings import Ranks, amount, findings, rates_of_hosts
from sparkdl_runner.launch.preflight.measurement import measure
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.function import on_each_rank
from sparkdl_runner.rank.reports import Reports

_FACTOR = 1.3
# How often executors are left out, and what comes in their place is measured.
_MOST_TRIES = 3


def before_training(
    launcher: Launcher,
    attempt: AttemptSpec,
    told: Sequence[Reports],
    stop: StopRequest,
    earlier: Sequence[Mapping[str, float]],
) -> None:
    """Measures, tells the findings, and keeps bad hosts out if the attempt's settings ask for that.

    A preflight that fails does not end the run: the training's ranks may be started again.

    Raises:
        LaunchError: The ranks cannot be started.
        RunCancelledError: ``stop`` was cancelled.
    """
    if attempt.config.spare_seconds is None:
        # The training's workers start in the same places, and then need not import torch.
        attempt = replace(attempt, spare_seconds=SPARE_SECONDS)
    for _ in range(_MOST_TRIES):
        try:
            report = preflight(launcher, attempt, stop, earlier)
        except BaseException as error:
            is_final = not isinstance(error, RunnerError) or stop.cancelled.is_set()
            if is_final or isinstance(error, LaunchError | RunCancelledError):
                end_spares()  # No training comes that would take them.
                stop.raise_if_cancelled()
                raise
            tell(f"preflight was not finished, and the training starts: {first_line(error)}")
            return
        bad = sorted({rank for own, _, is_bad in report["findings"] if is_bad for rank in own})
        if bad and attempt.config.preflight_excludes:
            refusal = launcher.keep_out(bad)
            report["kept_out"] = [] if refusal else bad
            end = f"stay: {refusal}" if refusal else "get no more tasks"
            report["lines"].append(f"preflight: the executors of these ranks {end}.")
        for line in report["lines"]:
            tell(line)
        for one in told:
            one.preflight(report)
        if not report["kept_out"]:
            return


def preflight(
    launcher: Launcher,
    attempt: AttemptSpec,
    stop: StopRequest,
    earlier: Sequence[Mapping[str, float]] = (),
) -> dict[str, Any]:
    """Measures once.

    Returns:
        Plain values: ``lines`` for a person, ``findings``, ``kept_out`` (ranks), ``rates`` of hosts
        for later runs, ``level``, ``seconds`` of the slowest rank, and ``ranks`` (see ``measure``).

    Raises:
        RunnerError: The ranks could not start, or failed.
    """
    began, config = time.time(), attempt.config
    level = config.preflight or "quick"
    own = replace(
        attempt,
        function=pack(on_each_rank(measure), level),
        run=f"{attempt.run}-preflight",
    )
    ranks: Ranks = result_of(launcher.run(own, (), stop), own.run)
    # By the driver's clock, rank 0 has begun after ``began`` and has ended before now.
    ahead = min(0.0, ranks[0]["started"] - began) + max(0.0, ranks[0]["ended"] - time.time())
    found = list(findings(ranks, config.slow_rank_factor or _FACTOR, ahead, earlier))
    seconds = max(rank["seconds"] for rank in ranks)
    lines = [f"preflight ({level}, {seconds:.1f} s): {_medians(ranks)}."]
    for members, text, _ in found:
        who = f"rank {', '.join(map(str, members))} on {ranks[members[0]]['place']}"
        lines.append(f"preflight: {who}: {text}.")
    report = {"lines": lines, "findings": found, "kept_out": [], "rates": rates_of_hosts(ranks)}
    return report | {"level": level, "seconds": round(seconds, 2), "ranks": ranks}


def _medians(ranks: Ranks) -> str:
    """One line with the median of each measurement."""
    parts = [f"{len(ranks)} rank{'s' * (len(ranks) > 1)}"]
    for what in dict.fromkeys(what for rank in ranks for what in rank["rates"]):
        rates = [rank["rates"][what] for rank in ranks if what in rank["rates"]]
        parts.append(f"{what} {amount(what, median(rates))}")
    if all("latency" in rank for rank in ranks):
        latency, rate = (median(rank[one] for rank in ranks) for one in ("latency", "bandwidth"))
        parts.append(f"allreduce {1000 * latency:.3g} ms, {amount('allreduce', rate)}")
    else:
        parts.append("no collective")
    has_gpu = any("copies to the GPU" in rank["rates"] for rank in ranks)
    return ", ".join(parts if has_gpu else [*parts, "no GPU"])
