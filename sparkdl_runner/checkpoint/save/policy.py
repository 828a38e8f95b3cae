"""The policy for a save that fails: how long to try again, and whether training goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkdl_runner.base.whole_number import require_whole

OnSaveError = Literal["fail", "warn"]


@dataclass(frozen=True, kw_only=True)
class SavePolicy:
    """The arguments are those of ``CheckpointManager``, which says what they mean."""

    on_save_error: OnSaveError = "fail"
    max_failed_saves: int = 3
    retry_seconds: float = 60.0
    ranks_timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.on_save_error not in ("fail", "warn"):
            raise ValueError(f"on_save_error is {self.on_save_error!r}; expected 'fail' or 'warn'.")
        require_whole("max_failed_saves", self.max_failed_saves, least=1)
        for name, least in (("retry_seconds", 0), ("ranks_timeout_seconds", self.retry_seconds)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} is {value!r}; expected a number of seconds.")
            if not least <= value < float("inf"):
                raise ValueError(
                    f"{name} is {value!r}; expected {least:g} or more seconds. Other ranks wait at "
                    "least as long as one may try again."
                )

    def goes_on(self, failed: int) -> bool:
        """Whether training goes on after so many saves in a row that failed."""
        return self.on_save_error == "warn" and failed <= self.max_failed_saves

    @property
    def commit_timeout_seconds(self) -> float:
        """How long a rank waits for the commit, once it is done: rank 0 has more to write."""
        return 30 * self.ranks_timeout_seconds

    @property
    def removal_retry_seconds(self) -> float:
        """How long the removal of old checkpoints is tried again: the next save waits for it."""
        return self.retry_seconds / 5

    @property
    def hurry_seconds(self) -> float:
        """How long others are waited for where training has failed, perhaps as they are gone."""
        return self.retry_seconds / 20
