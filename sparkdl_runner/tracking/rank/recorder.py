"""Collects what one rank logs, and sends it to the driver from a thread.

Rank 0 sends metrics, which the driver gives to MLflow. All ranks send their counts of steps and
samples, and where the time went.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sparkdl_runner.rank import rank_facts, resumable
from sparkdl_runner.tracking.entries import Entry, is_metric_entry
from sparkdl_runner.tracking.rank.metric_values import (
    as_number,
    as_whole_number,
    check_name,
)
from sparkdl_runner.tracking.rank.step_trace import StepTrace
from sparkdl_runner.tracking.report.performance import OF_THE_RUN
from sparkdl_runner.tracking.time_use import TimeUse

SEND_SECONDS = 0.5
# Other ranks report sums, so a later report makes up for a lost one.
OTHER_RANKS_SEND_SECONDS = 1.0
# A report must fit into a frame of the log channel, which holds a megabyte.
MAX_ENTRIES_PER_REPORT = 2000
MAX_REPORT_BYTES = 600_000
METRIC_BYTES = 300
# MLflow takes less; the driver cuts the rest, and says so.
MAX_TEXT_CHARACTERS = 10_000
MAX_LATEST = 50
CLOSE_SECONDS = 10.0
MAX_PROBLEMS = 20
MAX_WAITING_ENTRIES = 1_000_000
# Metrics of the last seconds before a checkpoint are kept in it too: where the host is lost right
# after it, they may not have reached the driver.
KEEP_SECONDS = 5.0
MAX_KEPT_ENTRIES = 5000

Send = Callable[[dict[str, Any]], None]
_Moment = tuple[int, float, dict[str, float]]
"""The end of a step: its number, ``perf_counter``, and where the time had gone until then."""


class Recorder:
    """Collects what one rank logs, and sends a report of it twice a second.

    Args:
        rank: The rank; only rank 0's metrics are sent.
        send: Takes a report (JSON values). May block; may raise OSError if the agent is gone.
        trace: Traces some steps, if that is wanted.
        run_id: The MLflow run. Metrics kept in a checkpoint of another run are not sent again.
    """

    def __init__(
        self, rank: int, send: Send, trace: StepTrace | None = None, run_id: str = ""
    ) -> None:
        self._rank = rank
        self._run_id = run_id
        self._pid = os.getpid()
        self._send = send
        self._trace = trace
        self._logged: deque[tuple[int, float, Mapping[str, Any]]] = deque()
        self._entries: deque[Entry] = deque()
        self._kept: deque[tuple[float, list[Entry]]] = deque()
        self._problems: list[str] = []
        self._not_finite: set[str] = set()
        self._names: set[str] = set()
        self._dropped = 0
        self.num_entries = 0
        """How many entries there are in all reports, those to come among them."""
        self._total_steps: int | None = None
        self._epoch: int | None = None
        self._first: _Moment | None = None
        self._last: _Moment | None = None
        self._newest_step = 0
        self._samples = 0
        self._latest: dict[str, float] = {}
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.time_use = TimeUse()

    def start(self) -> None:
        """Begins to send. A second call does nothing."""
        if self._thread is not None:
            return
        self.time_use.start()
        if self._rank == 0:
            resumable.register("metrics", self._get_state, self._put_state)
        self._thread = threading.Thread(target=self._run, name="sparkdl-recorder", daemon=True)
        self._thread.start()

    @property
    def newest_step(self) -> int:
        """The last step of a metric of the function, by our call or MLflow's; 0 at first."""
        return max(self._newest_step, self._last[0] if self._last else 0)

    def log_metrics(
        self,
        step: int,
        metrics: Mapping[str, Any],
        *,
        samples: int | None,
        epoch: int | None,
        total_steps: int | None,
    ) -> None:
        """See ``sparkdl_runner.tracking.log_metrics``."""
        if os.getpid() != self._pid:
            return  # A forked process has a copy of the recorder, but no thread that sends.
        if self._thread is None:
            self.start()
        if type(step) is not int:
            step = as_whole_number("step", step)
        if self._rank == 0 and metrics:
            values = {}
            for name, value in metrics.items():
                if name not in self._names:
                    check_name(name)
                    self._names.add(name)
                if type(value) is not float:
                    value = as_number(name, value, step)
                values[name] = value
            if len(self._logged) < MAX_WAITING_ENTRIES:
                self._logged.append((step, time.time(), values))
                self.num_entries += len(values)
            else:
                self._dropped += len(values)
        self._last = (step, time.perf_counter(), self.time_use.seconds())
        if self._first is None:
            # The first step has no predecessor, so its duration is unknown: counting begins here.
            self._first = self._last
            if samples is not None and "batch_size_per_rank" not in rank_facts.current():
                rank_facts.note(batch_size_per_rank=as_whole_number("samples", samples))
        elif samples is not None:
            self._samples += as_whole_number("samples", samples)
        if epoch is not None:
            self._epoch = as_whole_number("epoch", epoch)
        if total_steps is not None:
            self._total_steps = as_whole_number("total_steps", total_steps)
        if self._trace is not None:
            self._trace.step()

    def add(self, entries: list[Entry]) -> None:
        """Takes what MLflow's own calls on rank 0 log."""
        if os.getpid() != self._pid:
            return
        for entry in entries:
            if entry[0] == "metric":
                self._note_value(entry[1], entry[2], entry[4])
            else:
                entry[2] = entry[2][:MAX_TEXT_CHARACTERS]
        if len(self._entries) < MAX_WAITING_ENTRIES:
            self._entries.extend(entries)
            self.num_entries += len(entries)
        else:
            self._dropped += len(entries)

    def flush(self) -> None:
        """Sends what was logged until now."""
        if os.getpid() != self._pid:
            return  # The line to the agent is the rank's own.
        with self._sending:
            self._collect()
            while True:
                batch = self._next_batch()
                if batch:
                    self._keep(batch)
                self._send(self._report(batch))
                if not self._entries:
                    return

    def close(self) -> None:
        """Sends the rest and ends."""
        self._stopped.set()
        if self._thread is None or os.getpid() != self._pid:
            return
        if self._rank == 0:
            resumable.unregister("metrics")
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            return  # It waits for a GPU that hangs, or for an agent that is gone.
        self.time_use.stop()
        # A problem here must not hide what the function returned or raised.
        with suppress(Exception):
            if self._trace is not None:
                self._trace.close()
        with suppress(Exception):
            self.flush()

    def _run(self) -> None:
        seconds = SEND_SECONDS if self._rank == 0 else OTHER_RANKS_SEND_SECONDS
        while not self._stopped.wait(seconds):
            try:
                self.flush()
            except OSError:
                return  # The agent is gone, and this process will be.
            except Exception as error:
                self._problems.append(f"a report could not be sent: {error!r:.300}")

    def _next_batch(self) -> list[Entry]:
        """Takes as many entries as one report may hold."""
        batch: list[Entry] = []
        size_bytes = 0
        while self._entries and len(batch) < MAX_ENTRIES_PER_REPORT:
            entry = self._entries[0]
            own = METRIC_BYTES if entry[0] == "metric" else len(json.dumps(entry))
            if batch and size_bytes + own > MAX_REPORT_BYTES:
                break
            size_bytes += own
            batch.append(self._entries.popleft())
        return batch

    def _collect(self) -> None:
        """Turns logged values into entries; waits for numbers that a GPU still computes."""
        while self._logged:
            step, at, values = self._logged.popleft()
            for name, value in values.items():
                try:
                    number = float(value)
                except Exception:  # The GPU failed, which the function's own next call reports.
                    self._dropped += 1
                    self.num_entries -= 1
                    continue
                self._note_value(name, number, step)
                self._entries.append(["metric", name, number, int(at * 1000), step, {}])

    def _note_value(self, name: str, value: float, step: int) -> None:
        # Autologging copies a run's metrics to the model, also those that the driver logs.
        is_shown = not name.startswith(OF_THE_RUN)
        if is_shown:
            self._newest_step = max(self._newest_step, step)
        if is_shown and (name in self._latest or len(self._latest) < MAX_LATEST):
            self._latest[name] = value
        if not math.isfinite(value) and name not in self._not_finite:
            self._not_finite.add(name)
            self._problems.append(f"the metric {name!r} is {value} at step {step}")

    def _report(self, entries: list[Entry]) -> dict[str, Any]:
        problems = self._problems[:MAX_PROBLEMS]
        del self._problems[:MAX_PROBLEMS]
        dropped = self._dropped
        if dropped:
            problems.append(
                f"{dropped} metrics were dropped, since they came faster than they could be "
                "sent, or their GPU gave none"
            )
            self._dropped -= dropped
        nothing: _Moment = (0, 0.0, {})
        first_step, first_at, first_seconds = self._first or nothing
        step, at, seconds = self._last or nothing
        return {
            "step": step if self._last else None,
            "total_steps": self._total_steps,
            "epoch": self._epoch,
            "steps": max(0, step - first_step),
            "samples": self._samples,
            "running_seconds": at - first_at,
            "first_step_seconds_ago": time.perf_counter() - first_at if self._first else None,
            "seconds": {part: used - first_seconds[part] for part, used in seconds.items()},
            "latest": self._latest,
            "facts": rank_facts.current(),
            "problems": problems,
            "dropped": dropped,
            "entries": entries,
        }

    def _keep(self, entries: list[Entry]) -> None:
        now = time.monotonic()
        # Metrics only: parameters and tags may hold secrets, which only the driver redacts.
        self._kept.append((now, [entry for entry in entries if entry[0] == "metric"]))
        while self._kept and now - self._kept[0][0] > KEEP_SECONDS:
            self._kept.popleft()

    def _get_state(self) -> dict[str, Any]:
        """The metrics to keep in a checkpoint."""
        with suppress(Exception):
            self.flush()
        recent = [entry for _, entries in tuple(self._kept) for entry in entries]
        return {"run_id": self._run_id, "entries": recent[-MAX_KEPT_ENTRIES:]}

    def _put_state(self, state: Any) -> None:
        """Sends a checkpoint's metrics again; the driver drops those that it has."""
        if isinstance(state, dict) and state.get("run_id") == self._run_id:
            kept = [entry for entry in state.get("entries", ()) if is_metric_entry(entry)]
            self._entries.extend(kept)
            self.num_entries += len(kept)
