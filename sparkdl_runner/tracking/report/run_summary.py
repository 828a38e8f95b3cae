"""The content of a run's report: attempts, hosts, and the use of each rank's time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkdl_runner.tracking.entries import HIDDEN
from sparkdl_runner.tracking.rank_run import OWN_RUN_TAG
from sparkdl_runner.tracking.report.goodput import AttemptTime
from sparkdl_runner.tracking.report.performance import OF_THE_RUN, Counts, samples_per_second
from sparkdl_runner.tracking.time_use import COMMUNICATION, LABELS, PARTS

MAX_FIGURES = 6
PREFIX = "sparkdl_runner."
GOODPUT, TIME_LEFT = "system/goodput", "system/time_left_seconds"
ENDS = {"FINISHED": "Finished", "FAILED": "Failed", "KILLED": "Ended early", "RUNNING": "Running"}
"""What MLflow's status of a run means, in words."""
Points = list[tuple[float, float]]
RATE = "samples/s"
SKIPPED_IMAGES = "skipped_images"
"""A metric: images that did not decode, of all ranks and attempts of a driver."""
NUM_PROC_TAG, NUM_HOSTS_TAG = f"{PREFIX}num_proc", f"{PREFIX}num_hosts"
WARNING_TAG = f"{PREFIX}warning"
LOST_TAG = f"{PREFIX}lost_entries"
SLOW_TAG = f"{PREFIX}slow_ranks"
PREFLIGHT_TAG = f"{PREFIX}preflight"
RATES_TAG = f"{HIDDEN}preflight_rates"
# On MLflow's page, so long a value would leave no room for the tag's name.
VERSIONS_TAG = f"{HIDDEN}versions"
CHECKPOINT_WARNING_TAG = f"{PREFIX}checkpoint_warning"


@dataclass(kw_only=True)
class AttemptRow:
    """One submission of the gang."""

    number: int
    began_at: float
    ended_at: float = 0.0
    step: int = 0
    """The last step that was heard of."""
    checkpoint_step: int | None = None
    """The step of the newest checkpoint."""
    error: str = ""
    growth: str = ""
    """Why its ranks were ended to be started again as more of them."""
    time: AttemptTime | None = None
    """The use of the attempt's time."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, (self.ended_at or time.time()) - self.began_at)

    @property
    def ended_by(self) -> str:
        """The cause of its end, in one line."""
        end = "all ranks returned" if self.ended_at else "is running"
        return (self.error or self.growth or end).partition("\n")[0]

    def text(self) -> str:
        """All that is known of it."""
        began, ended = clock(self.began_at), clock(self.ended_at)
        what = self.error or self.growth or "All ranks returned."
        return f"Attempt {self.number}: {began} to {ended}, last step {self.step}.\n\n{what}\n"


@dataclass(kw_only=True)
class RunSummary:
    """A summary of a run, that goes on or has ended."""

    name: str = ""
    run_id: str = ""
    began_at: float = 0.0
    ended_at: float = 0.0
    """Now, while it goes on."""
    attempts: Sequence[AttemptRow] = ()
    totals: Mapping[int, Counts] = field(default_factory=dict)
    """The counts of each rank, over all attempts of this driver."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """The host of each rank, in the last attempt."""
    num_ranks: str = "?"
    num_hosts: str = "?"
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last value of each."""
    error: str = ""
    """The error that ended the training; empty if there was none."""
    status: str = "FINISHED"
    """MLflow's word for how it ended."""
    stopped: str = ""
    """Why it was asked to end early; empty if it was not."""
    checkpoint_warning: str = ""
    """How many saves failed, and why the last one did; empty if none has."""
    warning: str = ""
    """What is wrong with a training that ended well; empty if nothing is known to be."""
    lost_entries: str = ""
    """How many metrics, parameters and tags were logged and lost; empty if none were."""
    function_run: str = ""
    """The id of a run that the function made for itself; empty if there is none."""
    versions: str = ""
    """Of Python and of packages."""
    time_use: str = ""
    """Goodput, and where the rest of the time went, over all attempts of all drivers."""
    slow_ranks: str = ""
    """The ranks that the others wait for; empty if none are known."""
    preflight: Sequence[str] = ()
    """The lines of the preflight; empty if there was none."""
    total_steps: int | None = None
    seconds_left: float | None = None
    """How long the steps that are left will take, while it runs."""
    curves: dict[str, Points] = field(default_factory=dict)
    """Of metrics and ``RATE``: steps and values."""
    memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By host, how full its memory and its GPUs' is."""
    lines: Sequence[str] = ()
    """The newest that ranks have printed."""

    def of(self, run: Any) -> RunSummary:
        """The same with what an ``mlflow.entities.Run`` says, which has ended now."""
        return replace(
            self,
            name=run.info.run_name or run.info.run_id,
            run_id=run.info.run_id,
            began_at=run.info.start_time / 1000,
            ended_at=time.time(),
            num_ranks=run.data.params.get("world_size", run.data.tags.get(NUM_PROC_TAG, "?")),
            num_hosts=run.data.tags.get(NUM_HOSTS_TAG, "?"),
            metrics=run.data.metrics,
            checkpoint_warning=run.data.tags.get(CHECKPOINT_WARNING_TAG, ""),
            warning=run.data.tags.get(WARNING_TAG, ""),
            function_run=run.data.tags.get(OWN_RUN_TAG, ""),
            versions=run.data.tags.get(VERSIONS_TAG, ""),
            lost_entries=run.data.tags.get(LOST_TAG, ""),
        )

    def sentence(self) -> str:
        """Ranks, hosts and attempts, and where the time of all ranks went."""
        count = len(self.attempts)
        tried = "" if count <= 1 else f", in {count} attempts"
        hosts = f"{self.num_hosts} host{'s' * (self.num_hosts != '1')}"
        text = f"{self.num_ranks} ranks on {hosts}{tried}."
        seconds = {
            part: sum(counts.seconds[part] for counts in self.totals.values()) for part in PARTS
        }
        if whole := sum(seconds.values()):
            shares = {LABELS[part]: f"{seconds[part] / whole:.0%}" for part in PARTS}
            used = [f"{label} {share}" for label, share in shares.items() if share != "0%"]
            text += f" Of their time: {', '.join(used)}."
        if self.time_use:
            text += f" {self.time_use[0].upper()}{self.time_use[1:]}."
        if skipped := self.metrics.get(SKIPPED_IMAGES):
            text += f" {skipped:,.0f} images did not decode and were skipped."
        return text

    def own_seconds(self) -> dict[int, float]:
        """By rank that made steps, the seconds of a step in which it did not wait for others."""
        return {
            rank: sum(counts.per_step(part) for part in PARTS if part != COMMUNICATION)
            for rank, counts in self.totals.items()
            if counts.steps
        }

    @property
    def step(self) -> int:
        """The last step that was heard of."""
        return max((attempt.step for attempt in self.attempts), default=0)

    def slowest_rank(self) -> str:
        """The rank that the others wait for, in a sentence; empty where there are no others."""
        own = self.own_seconds()
        if len(own) < 2:
            return ""
        slowest = max(own, key=lambda rank: own[rank])
        where = f" on {self.hosts[slowest]}" if slowest in self.hosts else ""
        return (
            f"Rank {slowest}{where} is the slowest: without communication, it takes "
            f"{1000 * own[slowest]:.3g} ms for a step, and the median of all ranks is "
            f"{1000 * statistics.median(own.values()):.3g} ms."
        )

    def end(self) -> str:
        """Why it ended, if not because it was at its end: the cause, with rank and host."""
        cause = self.error.partition("\n")[0] or self.stopped
        return f"{ENDS[self.status]}: {cause}" if cause else ""

    def values(self) -> list[tuple[str, str]]:
        """The last values of the training's own metrics, of a few of them: names and values."""
        figures = [
            (name, number(value))
            for name, value in self.metrics.items()
            if not name.startswith((*OF_THE_RUN, SKIPPED_IMAGES))
        ]
        return figures[:MAX_FIGURES]

    def pace(self) -> list[tuple[str, str]]:
        """How long it took, how far it came, how fast, and the fullest memory: names and values."""
        seconds = self.ended_at - self.began_at
        figures = [("time", f"{seconds / 60:.1f} min" if seconds > 120 else f"{seconds:.0f} s")]
        if self.seconds_left is not None:
            figures.append(("time left", f"{self.seconds_left:,.0f} s"))
        if (goodput := self.metrics.get(GOODPUT)) is not None:
            figures.append(("goodput", f"{goodput:.0%}"))
        if self.step:
            of_all = f" of {self.total_steps:,}" if self.total_steps else ""
            figures.append(("last step", f"{self.step:,}{of_all}"))
        if rate := samples_per_second(self.totals.values()):
            figures.append(("samples/s", f"{rate:,.0f}"))
        for kind, name in (("system", "memory"), ("gpu", "GPU memory")):
            shares = [
                (value, host)
                for host, measured in self.memory.items()
                for figure, value in measured.items()
                if figure.startswith(kind)
            ]
            if shares:
                figures.append((name, "{:.0f}% on {}".format(*max(shares))))
        return figures


def number(value: float) -> str:
    """A metric's value, for a person."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def clock(at: float) -> str:
    """A time in seconds since the epoch, for a person."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
