"""The reports of an attempt's ranks: who they are, how far and how fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.report.goodput import AttemptTime
from sparkdl_runner.tracking.report.performance import (
    THROUGHPUT,
    Counts,
    Performance,
    samples_per_second,
)
from sparkdl_runner.tracking.report.run_summary import SKIPPED_IMAGES
from sparkdl_runner.tracking.run import parameters_and_tags
from sparkdl_runner.tracking.time_use import CHECKPOINT, DATA


class RankReports:
    """Collects ranks' reports, and makes entries of them.

    Used by the thread that receives reports and by the ``Heartbeat``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._performance = Performance()
        self._worlds: dict[int, World] = {}
        self.world_size = 0
        """How many ranks there are; 0 before the first is heard of."""
        self._gpus: dict[str, set[str]] = {}
        self._cores: dict[int, int] = {}
        self._joules: dict[str, float] = {}
        self._facts: dict[str, Any] = {}
        self._logged_facts: dict[str, Any] = {}
        self._skipped: dict[tuple[int, int], int] = {}  # by attempt and rank
        self._logged_skipped = 0
        self._first_step_at: float | None = None
        self._began_after = 0
        self.total_steps: int | None = None
        """Of the whole training, if it told."""
        self.step = 0
        """The last step that rank 0 has reported, in any attempt."""
        self.checkpoint_step: int | None = None
        """The step of the newest checkpoint that rank 0 has reported, in any attempt."""
        self.checkpoint: str | None = None
        """Its URL."""

    def begin_attempt(self) -> None:
        """Drops the last attempt's ranks: new ones are about to start."""
        with self._lock:
            self._worlds, self._gpus, self._cores, self._joules = {}, {}, {}, {}
            self._first_step_at, self._began_after = None, 0
            self._performance.begin_attempt()

    def add(self, world: World, report: dict[str, Any]) -> list[Entry]:
        """Adds a report. Returns where all ranks are, once each has reported."""
        with self._lock:
            is_new = world.rank not in self._worlds
            self._worlds[world.rank] = world
            self.world_size = world.size
            self._performance.see(world.rank, report)
            self._gpus.setdefault(world.host_id, set()).update(report["facts"].get("gpus", ()))
            self._cores[world.rank] = int(report["facts"].get("cores", 0))
            skipped = int(report["facts"].get(SKIPPED_IMAGES, 0))
            self._skipped[world.attempt, world.rank] = skipped
            if world.rank == 0:
                self.step = max(self.step, int(report["step"] or 0))
                self._note_times(report)
                self._facts = {"world_size": world.size, **report["facts"]}
                self.checkpoint_step = report["facts"].get("checkpoint_step", self.checkpoint_step)
                self.checkpoint = report["facts"].get("checkpoint", self.checkpoint)
            if not is_new or len(self._worlds) < world.size:
                return []
            ranks = sorted(self._worlds.values(), key=lambda rank_world: rank_world.rank)
            # By id: two hosts may share a name.
            hosts = {
                rank_world.host_id: (rank_world.host, rank_world.local_size) for rank_world in ranks
            }
            return parameters_and_tags.placement(hosts.values(), sum(map(len, self._gpus.values())))

    def add_host(self, world: World, values: Mapping[str, float]) -> None:
        """Adds the metrics of a host, of which the energy of its GPUs is kept."""
        if (energy := values.get("gpu_energy_kilojoules")) is not None:
            with self._lock:
                self._joules[world.host_id] = 1000 * energy

    def entries(self) -> list[Entry]:
        """The ranks' rates, and the facts that have changed since the last call."""
        with self._lock:
            now_ms = int(time.time() * 1000)
            entries = self._performance.entries(self.step, now_ms, self.world_size)
            skipped = sum(self._skipped.values())
            if skipped != self._logged_skipped:
                self._logged_skipped = skipped
                entries.append(["metric", SKIPPED_IMAGES, skipped, now_ms, self.step, {}])
            if self._facts == self._logged_facts:
                return entries
            self._logged_facts = dict(self._facts)
            return [*entries, *parameters_and_tags.known_facts(self._logged_facts)]

    def last_entries(self) -> list[Entry]:
        """The entries that are left at the end of the run, with the rate of the whole training.

        That rate replaces the last part's, since MLflow's page shows the latest value.
        """
        entries = self.entries()
        with self._lock:
            rate = samples_per_second(self._performance.totals().values())
            at_ms = int(time.time() * 1000)
            last = ["metric", THROUGHPUT, rate, at_ms, self.step, {}]
            return (
                [*(entry for entry in entries if entry[1] != THROUGHPUT), last] if rate else entries
            )

    def time(self, began_at: float, ended_at: float, *, has_failed: bool) -> AttemptTime:
        """The use of the attempt's time until now."""
        with self._lock:
            means = self._performance.means()
            return AttemptTime(
                began_at=began_at,
                ended_at=ended_at,
                first_step_at=self._first_step_at,
                running_seconds=means.running_seconds,
                input_seconds=means.seconds[DATA],
                checkpoint_seconds=means.seconds[CHECKPOINT],
                began_after=self._began_after,
                steps=means.steps,
                last_step=self.step,
                checkpoint_step=self.checkpoint_step or 0,
                has_failed=has_failed,
                gpus=sum(map(len, self._gpus.values())),
                cores=sum(self._cores.values()),
                energy_joules=sum(self._joules.values()),
            )

    def seconds_left(self) -> float | None:
        """How long the steps that are left will take at this attempt's pace, if that is known."""
        with self._lock:
            means = self._performance.means()
            if not self.total_steps or not means.steps:
                return None
            left = max(0, self.total_steps - self.step)
            return left * means.running_seconds / means.steps

    def _note_times(self, report: dict[str, Any]) -> None:
        since = report.get("first_step_seconds_ago")
        if since is not None:
            # By the driver's clock; a late message would make the time later.
            at = time.time() - since
            self._first_step_at = min(at, self._first_step_at or at)
        self._began_after = int(report["facts"].get("restored_step", 0))
        self.total_steps = report.get("total_steps") or self.total_steps

    @property
    def num_hosts(self) -> int:
        """How many hosts the ranks that were heard of are on; two hosts may share a name."""
        return len(self._gpus)

    def hosts(self) -> Mapping[int, str]:
        """The names of the hosts of this attempt, by rank."""
        with self._lock:
            return {rank: world.host for rank, world in self._worlds.items()}

    def totals(self) -> Mapping[int, Counts]:
        """The counts of each rank in this driver's attempts."""
        with self._lock:
            return self._performance.totals()
