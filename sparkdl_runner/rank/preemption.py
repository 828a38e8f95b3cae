"""SIGTERM as a request: the host is about to be taken away, so save and end.

Clusters send it before they take a machine back. While someone listens, the signal only sets a
flag, which is read between steps. Else it ends the process, as it does by default.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

is_sent_by_agent: Callable[[], bool] | None = None
"""Whether the SIGTERM that just came is from the rank's own agent, because the run is over: then
there is nothing to save. Set by the worker."""

_listeners = 0
_pid = 0
_requested = False
_previous: Any = None


def listen() -> bool:
    """Takes SIGTERM as a request from now on, in addition to what an earlier handler does.

    Returns:
        Whether it does. Python lets only the main thread set handlers, so elsewhere this changes
        nothing and returns False. Every True asks for one ``stop_listening``.
    """
    global _listeners, _previous, _pid
    if threading.current_thread() is not threading.main_thread():
        return False
    if _listeners == 0:
        _pid = os.getpid()
        _previous = signal.signal(signal.SIGTERM, _handle)
    _listeners += 1
    return True


def stop_listening() -> None:
    """Takes back one ``listen``; after the last one, the earlier handler is in place again."""
    global _listeners, _requested
    if _listeners == 0:
        return
    _listeners -= 1
    if _listeners:
        return
    _requested = False
    if threading.current_thread() is not threading.main_thread():
        return
    # If user code has set another handler since, leave that in place.
    if signal.getsignal(signal.SIGTERM) is _handle:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if _previous is None else _previous)


def is_listening() -> bool:
    """Whether someone listens."""
    return _listeners > 0


def requested() -> bool:
    """Whether SIGTERM came while this process listens for it."""
    return _requested


def _handle(number: int, frame: FrameType | None) -> None:
    global _requested
    # A process that the function forked has nothing to save, so the signal ends it.
    if _listeners == 0 or os.getpid() != _pid or (is_sent_by_agent and is_sent_by_agent()):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        return
    _requested = True
    if callable(_previous):
        _previous(number, frame)
