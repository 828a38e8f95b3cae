"""A person's or a clock's wish that a training ends, and the attempt that hears it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sparkdl_runner.base.time_limits import called_after
from sparkdl_runner.errors import RunCancelledError
from sparkdl_runner.rank.stop_request import MOST_BYTES


class StopRequest:
    """Made once; told to the attempt that runs, and to each that is started after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tell: Callable[[str], None] | None = None
        self._interrupt: Callable[[], None] | None = None
        self.cancelled = threading.Event()
        """Set once all ranks are to be ended, and none started any more."""
        self.reason = ""
        """Why the training is to end; empty if it is not."""

    def make(self, reason: str) -> None:
        """Asks for the end. What comes after the first request changes nothing.

        Raises:
            ValueError: The reason is empty, or longer than 200 bytes.
        """
        if not reason or len(reason.encode()) > MOST_BYTES:
            raise ValueError(
                f"The reason to stop has {len(reason.encode())} bytes; give 1 to {MOST_BYTES}."
            )
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            tell = self._tell
        if tell is not None:
            tell(reason)

    def cancel(self) -> None:
        """Has all ranks ended at once, and none started any more; safe from any thread."""
        with self._lock:
            self.cancelled.set()
            interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def raise_if_cancelled(self) -> None:
        """Raises RunCancelledError if the ranks are to be ended at once."""
        if self.cancelled.is_set():
            raise RunCancelledError("The run was cancelled by cancel() of its future.")

    def after(self, seconds: float | None) -> AbstractContextManager[None]:
        """Asks for the end when so many seconds have passed; never if that is None."""
        return called_after(seconds, lambda: self.make(f"the time limit of {seconds:g} s is over"))

    @contextmanager
    def told_to(self, tell: Callable[[str], None], interrupt: Callable[[], None]) -> Iterator[None]:
        """Calls ``tell`` with the reason, ``interrupt`` to cancel: now, or when that is asked."""
        with self._lock:
            self._tell, self._interrupt = tell, interrupt
            reason = self.reason
        try:
            if self.cancelled.is_set():
                interrupt()
            if reason:
                tell(reason)
            yield
        finally:
            with self._lock:
                self._tell = self._interrupt = None
