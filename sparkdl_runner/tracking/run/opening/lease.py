"""Which driver holds a run, so that two never write to it at the same time."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from sparkdl_runner.base.foreign_file import ForeignFileError, build
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.rank.process_identity import ProcessIdentity, this_process
from sparkdl_runner.tracking.entries import HIDDEN, Entry
from sparkdl_runner.tracking.settings import Tracking

HOLDER_TAG, ALIVE_TAG = f"{HIDDEN}launch.driver", f"{HIDDEN}driver_alive_at"
# Renewals in the time of a lease, which so outlives three that are lost.
_RENEWALS = 4.5
# With clocks that are further apart than an hour, no token and no request to a storage works.
_LONG_OVER_SECONDS = 3_600.0
_MOST_SECONDS = 24 * 3_600.0
"""Of a lease: with a tag of others that says more, nobody waits for ever."""
_MOST_SINCE = 1 << 35
# How many looks at a run there are between two signs of its driver.
_LOOKS = 10

held_here: set[str] = set()
"""The runs that threads of this driver hold."""


def require_not_held(run_id: str | None) -> None:
    """Raises LaunchError if another thread of this driver holds a run."""
    if run_id in held_here:
        raise LaunchError(
            f"The MLflow run {run_id} is active in another thread of this driver. Wait until that "
            "training is over."
        )


@dataclass(frozen=True, kw_only=True)
class Holder(ProcessIdentity):
    """A driver that holds a run, or has held it, as a tag of the run says it."""

    lease: str
    """Another one each time that a run is taken."""
    since: int
    """Seconds since 1970."""
    seconds: float = Tracking.lease_seconds
    """How long after its last sign it counts as lost."""
    silent: float = 0.0
    """How long it was not heard of, if its clock agrees with ours; not in the tag."""

    @classmethod
    def of(cls, tags: Mapping[str, str], now: float) -> Holder | None:
        """Reads the tags of a run; None if they name no driver."""
        text, alive_at = tags.get(HOLDER_TAG), tags.get(ALIVE_TAG, "")
        if text is None or not alive_at.isdecimal():
            return None
        try:
            holder = build(cls, json.loads(text))
        except (ForeignFileError, ValueError, RecursionError):
            holder = _UNKNOWN  # Of another version: it is a driver all the same.
        if not (0 <= holder.since < _MOST_SINCE and holder.seconds > 0):
            holder = _UNKNOWN
        seconds = min(holder.seconds, _MOST_SECONDS)
        return replace(holder, seconds=seconds, silent=now - float(alive_at))

    @property
    def has_let_go(self) -> bool:
        """Whether it certainly holds the run no more: it has ended, or was lost long ago."""
        if self.is_on_this_machine() and (self.is_gone() or self.pid == os.getpid()):
            return True
        return self.silent > max(_LONG_OVER_SECONDS, self.seconds)

    @property
    def is_late(self) -> bool:
        """Whether it should have been heard of by now, if its clock agrees with ours."""
        return self.silent > self.seconds

    @property
    def renew_seconds(self) -> float:
        """How often it says that it lives."""
        return self.seconds / _RENEWALS

    def __str__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return (
            f"the driver with process id {self.pid} on host {self.hostname:.100} runs it "
            f"since {began}, "
            f"heard of {max(0, self.silent):.0f} s ago"
        )


_UNKNOWN = Holder(
    hostname="?", boot_id="", pid_namespace="", pid=0, started_ticks=0, lease="", since=0
)


class Lease:
    """This driver's hold on a run, kept as two tags of it.

    Args:
        seconds: How long after its last sign this driver counts as lost.
    """

    def __init__(self, seconds: float = Tracking.lease_seconds) -> None:
        self.own = Holder(
            **asdict(this_process()),
            lease=uuid.uuid4().hex,
            since=int(time.time()),
            seconds=min(float(seconds), _MOST_SECONDS),
        )
        self._first_seen: dict[tuple[str, str], float] = {}
        """When each sign of another driver was first seen here, by this process's own clock."""

    def entries(self, now: float | None = None) -> list[Entry]:
        """The tags that say that this driver holds the run, and lives."""
        fields = asdict(self.own)
        del fields["silent"]
        at = time.time() if now is None else now
        return [["tag", HOLDER_TAG, json.dumps(fields)], ["tag", ALIVE_TAG, f"{at:.0f}"]]

    def held_by_another(self, tags: Mapping[str, str], now: float | None = None) -> Holder | None:
        """The other driver that holds a run with these tags; None if there is none.

        It holds the run until its sign has stayed the same before our eyes for the time of its
        lease, whatever its clock says: what is seen for the first time was given just now.
        """
        holder = Holder.of(tags, time.time() if now is None else now)
        if holder is None or holder.lease == self.own.lease or holder.has_let_go:
            return None
        at = time.monotonic()
        first = self._first_seen.setdefault((tags[HOLDER_TAG], tags[ALIVE_TAG]), at)
        return None if at - first > holder.seconds else holder

    def wait_for_sign(
        self,
        tags: Mapping[str, str],
        look: Callable[[], Mapping[str, str]],
        tell: Callable[[Holder], None],
    ) -> Holder | None:
        """As ``held_by_another``, but watches a driver that is late by our clock until it is sure.

        Args:
            tags: Of the run.
            look: Reads them again.
            tell: Called once if there is something to wait for.
        """
        first: str | None = None
        while True:
            holder = self.held_by_another(tags)
            if holder is None or holder.is_on_this_machine() or not holder.is_late:
                return holder
            if first is None:
                tell(holder)
            elif first != tags[ALIVE_TAG]:
                return holder
            first = tags[ALIVE_TAG]
            time.sleep(holder.renew_seconds / _LOOKS)
            tags = look()
