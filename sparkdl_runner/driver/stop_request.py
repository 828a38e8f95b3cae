"""A person's or a clock's wish that a training ends by itself, and the attempt that hears it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl_runner.hooks.stop_request import MOST_BYTES


class StopRequest:
    """Made once; told to the attempt that runs, and to each that is started after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tell: Callable[[str], None] | None = None
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

    @contextmanager
    def after(self, seconds: float | None) -> Iterator[None]:
        """Asks for the end when so many seconds have passed; never if that is None."""
        if seconds is None:
            yield
            return
        timer = threading.Timer(seconds, self.make, [f"the time limit of {seconds:g} s is over"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextmanager
    def told_to(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Calls ``tell`` with the reason, now or when the request is made."""
        with self._lock:
            self._tell = tell
            reason = self.reason
        try:
            if reason:
                tell(reason)
            yield
        finally:
            with self._lock:
                self._tell = None
