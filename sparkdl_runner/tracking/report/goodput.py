"""Goodput: the share of a training's time that made progress, over all attempts of its run.

The rest went to its start, to waiting for data, to checkpoints, to steps that were lost and made
again, to restarts, and to its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from sparkdl_runner.base.foreign_file import ForeignFileError, build, parse_json
from sparkdl_runner.tracking.entries import HIDDEN, hidden_tag

TIME_TAG = f"{HIDDEN}attempt.{{}}.time"
PROGRESS, START, DATA_WAIT, CHECKPOINT = "progress", "start", "data wait", "checkpoint"
LOST, RESTART, END = "lost steps", "restarts", "end"
PARTS = (PROGRESS, START, DATA_WAIT, CHECKPOINT, LOST, RESTART, END)

# A smaller one would read as 0.0%.
LEAST_SHARE = 0.0005


@dataclass(frozen=True, kw_only=True)
class AttemptTime:
    """The use of one attempt's time; times of day are in seconds since the epoch."""

    began_at: float
    ended_at: float
    first_step_at: float | None = None
    """When its first step was done, whose own duration is unknown; None if there was none."""
    running_seconds: float = 0.0
    """From then to its last step."""
    input_seconds: float = 0.0
    """The seconds of these spent waiting for data; the mean of all ranks."""
    checkpoint_seconds: float = 0.0
    """The same for saving."""
    began_after: int = 0
    """The step of the checkpoint that it went on from; 0 if there was none."""
    steps: int = 0
    """Steps done after the first."""
    last_step: int = 0
    checkpoint_step: int = 0
    """The step of its newest checkpoint."""
    has_failed: bool = False
    gpus: int = 0
    """That its ranks saw; 0 also if they had not told yet."""
    cores: int = 0
    """The threads that its ranks were given, added up."""
    energy_joules: float = 0.0
    """Of all GPUs of its hosts; 0 also if it is unknown."""

    def tag(self) -> str:
        """This as the value of a tag."""
        return json.dumps({name: _short(value) for name, value in asdict(self).items()})


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The use of a training's time."""

    seconds: Mapping[str, float]
    """Seconds of each part. Their sum lasts from the first attempt's start to the last's end."""

    @property
    def share(self) -> float:
        """The share that made progress."""
        whole = sum(self.seconds.values())
        return self.seconds[PROGRESS] / whole if whole > 0 else 0.0

    def sentence(self) -> str:
        """The share, and where the rest went, as far as it shows."""
        whole = sum(self.seconds.values())
        shares = {name: self.seconds[name] / (whole or 1.0) for name in PARTS[1:]}
        rest = ", ".join(
            f"{name} {share:.1%}" for name, share in shares.items() if share >= LEAST_SHARE
        )
        return f"goodput {self.share:.1%} of {whole:,.0f} s{f' ({rest})' if rest else ''}"


def goodput_of(attempts: Sequence[AttemptTime]) -> Goodput:
    """Adds up all attempts of a run, in their order."""
    seconds = dict.fromkeys(PARTS, 0.0)
    for number, attempt in enumerate(attempts):
        is_last = number == len(attempts) - 1
        # One without a step may not have told yet from where it goes on.
        later = [one for one in attempts[number + 1 :] if one.first_step_at is not None]
        if later:
            kept = later[0].began_after
        else:
            is_kept = is_last and not attempt.has_failed
            kept = attempt.last_step if is_kept else attempt.checkpoint_step
        first = RESTART if number else START
        whole = max(0.0, attempt.ended_at - attempt.began_at)
        if attempt.first_step_at is None:
            seconds[first] += whole
            continue
        until_first = min(max(0.0, attempt.first_step_at - attempt.began_at), whole)
        running = min(max(0.0, attempt.running_seconds), whole - until_first)
        waits = min(max(0.0, attempt.input_seconds), running)
        saves = min(max(0.0, attempt.checkpoint_seconds), running - waits)
        useful = running - waits - saves
        lost = useful * (
            min(max(0, attempt.last_step - kept), attempt.steps) / max(1, attempt.steps)
        )
        seconds[first] += until_first
        seconds[DATA_WAIT] += waits
        seconds[CHECKPOINT] += saves
        seconds[LOST] += lost
        seconds[PROGRESS] += useful - lost
        # Noticing a failure and ending the other ranks counts as restarting, if it restarts.
        tail = END if is_last else RESTART
        seconds[tail] += whole - until_first - running
    seconds[RESTART] += sum(
        max(0.0, later.began_at - earlier.ended_at) for earlier, later in pairwise(attempts)
    )
    return Goodput(seconds=seconds)


def times_in(tags: Mapping[str, str], numbers: Iterable[int]) -> list[AttemptTime]:
    """The times that earlier drivers wrote into the run's tags; malformed ones are skipped."""
    times = []
    for number in numbers:
        try:
            written = parse_json((hidden_tag(tags, TIME_TAG.format(number)) or "").encode())
            # An attempt whose driver was lost told this before its end.
            times.append(build(AttemptTime, written))
        except (ForeignFileError, ValueError):
            continue
    return times


def _short(value: float | None) -> float | None:
    return round(value, 3) if isinstance(value, float) else value
