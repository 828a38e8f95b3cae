"""Settings of a training's MLflow run, each with a default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OTHER_RANKS = ("ignore", "error")


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Which MLflow run a training goes into, and what is logged there.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is unknown, out of range, or does not fit the others.
    """

    tracking_uri: str | None = None
    """MLflow's store; None for MLflow's own choice (``MLFLOW_TRACKING_URI`` and so on)."""

    experiment: str | None = None
    """The experiment's name, made if there is none; None for MLflow's active one."""

    run_name: str | None = None
    """The run's name; None for that of the function or script, and a number: ``train-3``."""

    run_id: str | None = None
    """A run to go on with, after its driver has died or its training has failed."""

    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags to set besides the package's own."""

    other_ranks: str = "ignore"
    """What happens when ranks other than 0 write to the run: ``"ignore"`` or ``"error"``. They may
    read as rank 0 does, and ``mlflow.start_run()`` starts no run there."""

    system_metrics: bool = True
    """Whether each host's CPU, memory, disk, network and GPUs are logged, once for each host."""

    report: bool = True
    """Whether a summary page and the run's description are made at the end."""

    torch_profiler: bool = False
    """Whether rank 0 traces a few early steps with ``torch.profiler``; the trace is an artifact.
    Steps are those that ``log_metrics`` counts."""

    horovod_timeline: bool = False
    """Whether Horovod writes its timeline (a trace for chrome://tracing); it is an artifact."""

    opening_timeout_seconds: float = 60.0
    """How long each answer of MLflow may take while the run is opened. A server that hangs delays
    the start by no more."""

    delivery_timeout_seconds: float = 60.0
    """How long the end of a run waits for a tracking server that is slow or down. What was not
    delivered by then stays in a file, and is sent when the run is resumed on this machine."""

    lease_seconds: float = 90.0
    """How long after its last sign a driver counts as lost, so that another may go on with its run.
    It gives a sign more than four times as often. One whose process is known to have ended, as on
    the same host, counts as lost at once. More than a day counts as a day."""

    def __post_init__(self) -> None:
        for name in ("tracking_uri", "experiment", "run_name", "run_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise TypeError(f"Tracking: {name} is {value!r}; it must be a text, or None.")
        if self.other_ranks not in OTHER_RANKS:
            raise ValueError(
                f"Tracking: other_ranks is {self.other_ranks!r}; it must be one of "
                + " and ".join(repr(name) for name in OTHER_RANKS)
                + "."
            )
        for name in ("system_metrics", "report", "torch_profiler", "horovod_timeline"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(
                    f"Tracking: {name} is {getattr(self, name)!r}; it must be True or False."
                )
        if not isinstance(self.tags, Mapping) or not all(
            isinstance(text, str) for pair in self.tags.items() for text in pair
        ):
            raise TypeError(f"Tracking: tags is {self.tags!r}; it must map texts to texts.")
        for name, least in (
            ("opening_timeout_seconds", 1),
            ("delivery_timeout_seconds", 0),
            ("lease_seconds", 10),
        ):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
                raise TypeError(f"Tracking: {name} is {seconds!r}; it must be a number.")
            if not least <= seconds < float("inf"):
                raise ValueError(
                    f"Tracking: {name} is {seconds!r}; it must be {least} or more, and finite."
                )
