"""How a run is to be launched and shown: validated once, on the driver."""

from __future__ import annotations

from dataclasses import dataclass

VERBOSITIES = ("all", "log_callback_only")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run that have a sensible default.

    Raises:
        ValueError: A value is out of range or unknown.
        TypeError: A value has the wrong type.
    """

    driver_log_verbosity: str = "all"
    """``"all"``: every line that any rank prints is shown on the driver, prefixed by its rank.
    ``"log_callback_only"``: only what was sent by ``log_to_driver`` (or ``LogCallback``)."""

    slot_wait_seconds: float = 60.0
    """How long to wait for executors to register when the cluster has too few slots. Slots that
    exist and are busy are waited for without limit, as Databricks documents."""

    shutdown_grace_seconds: float = 3.0
    """How long a worker that is asked to stop (SIGTERM) may take before it is killed."""

    def __post_init__(self) -> None:
        if self.driver_log_verbosity not in VERBOSITIES:
            raise ValueError(
                f"driver_log_verbosity is {self.driver_log_verbosity!r}; it must be one of "
                + " and ".join(repr(name) for name in VERBOSITIES)
                + "."
            )
        for name in ("slot_wait_seconds", "shutdown_grace_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} is {value!r}; it must be a number of seconds.")
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value!r}; it must be 0 or more seconds, and finite.")
