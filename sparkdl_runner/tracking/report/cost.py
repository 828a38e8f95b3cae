"""The cost of a training: hours of GPUs, or of cores where it has none, and energy.

Held, not used: ranks that restart, or wait for data, hold theirs as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from sparkdl_runner.tracking.report.goodput import DATA_WAIT, LOST, RESTART, AttemptTime, goodput_of

_JOULES_PER_KWH = 3.6e6
_WASTE = {"restarts": RESTART, "lost_steps": LOST, "data_wait": DATA_WAIT}


def cost_of(attempts: Sequence[AttemptTime]) -> dict[str, float]:
    """Adds up all attempts of a run.

    Returns:
        By name: ``gpu_hours``, or ``core_hours`` of a run without GPUs; those that restarts, lost
        steps and waiting for data took; ``energy_kwh``. What is nothing or unknown is left out.
    """
    device = "gpu" if any(attempt.gpus for attempt in attempts) else "core"
    times = [attempt.ended_at - attempt.began_at for attempt in attempts]
    counts = [attempt.gpus if device == "gpu" else attempt.cores for attempt in attempts]
    # An attempt that failed before its ranks told is held to have had as many as the others.
    held = sum(time * (count or max(counts)) for time, count in zip(times, counts, strict=True))
    per_second = held / (sum(times) or 1.0) / 3600
    seconds = dict(goodput_of(attempts).seconds)
    # Between two attempts no rank holds anything: another driver may go on a day later.
    seconds[RESTART] -= sum(
        max(0.0, later.began_at - earlier.ended_at) for earlier, later in pairwise(attempts)
    )
    values = {f"{device}_hours": per_second * sum(seconds.values())}
    values |= {f"{device}_hours_{name}": per_second * seconds[_WASTE[name]] for name in _WASTE}
    values["energy_kwh"] = sum(attempt.energy_joules for attempt in attempts) / _JOULES_PER_KWH
    return {name: round(value, 6) for name, value in values.items() if value > 0}


def in_words(cost: Mapping[str, float]) -> str:
    """The same for people, without parts of less than a hundredth."""
    device = "gpu" if "gpu_hours" in cost else "core"
    least = cost[f"{device}_hours"] / 100
    parts = {part: cost.get(f"{device}_hours_{name}", 0.0) for name, part in _WASTE.items()}
    waste = ", ".join(f"{part} {hours:.3g}" for part, hours in parts.items() if hours >= least)
    energy = f", {cost['energy_kwh']:.3g} kWh" if "energy_kwh" in cost else ""
    name = "GPU" if device == "gpu" else device
    whole = f"{cost[f'{device}_hours']:.3g} {name} hours"
    return f"{whole}{f' (of which {waste})' if waste else ''}{energy}"
