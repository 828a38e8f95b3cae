"""What a worker's pulse says of where its main thread is."""

from __future__ import annotations

import sys
import threading
import time
import types
import weakref
from types import SimpleNamespace

from sparkdl_runner.launch.wire.messages import Pulse
from sparkdl_runner.launch.worker import pulse


class Settled(threading.Event):
    """Set once there is a pulse of the main thread's wait for it."""

    pulse: dict


class Line:
    """Takes pulses while one is waited for; the thread that sends them ends with ``is_closed``."""

    def __init__(self) -> None:
        self.is_closed = False
        self._settled = Settled()
        self._seen: tuple[types.FrameType, int] | None = None

    def send(self, message: Pulse) -> None:
        if self.is_closed:
            raise BrokenPipeError
        settled, frame = self._settled, waits_in(threading.main_thread())
        # It was there before this pulse was made and is there after it, so it was there meanwhile.
        before, self._seen = self._seen, frame and (frame, frame.f_lasti)
        if self._seen is not None and self._seen == before and not settled.is_set():
            settled.pulse = message
            settled.set()

    def wait(self) -> Pulse:
        """What pulses say as long as the main thread waits here."""
        settled = self._settled = Settled()
        assert settled.wait(120)
        return settled.pulse


def waits_in(thread: threading.Thread) -> types.FrameType | None:
    """The frame in which a thread waits for another one, if it does."""
    frame = sys._current_frames()[thread.ident or 0]
    return frame if frame.f_code is threading.Condition.wait.__code__ else None


def in_the_rendezvous(line: Line) -> Pulse:
    return line.wait()


def test_a_gpu_is_used_once_torch_has_begun_to(monkeypatch):
    """Waiting for a GPU uses the processor, and would be taken for progress."""
    for modules, found in (({}, False), ({"torch": SimpleNamespace()}, False)):
        monkeypatch.setattr(pulse.sys, "modules", modules)
        assert pulse._uses_a_gpu() is found
    for begun in (True, False):
        cuda = SimpleNamespace(is_initialized=lambda begun=begun: begun)
        monkeypatch.setattr(pulse.sys, "modules", {"torch": SimpleNamespace(cuda=cuda)})
        assert pulse._uses_a_gpu() is begun


def test_a_place_stays_while_the_function_waits_at_it_and_the_rendezvous_is_known(monkeypatch):
    monkeypatch.setattr(pulse, "PULSE_SECONDS", 0.001)
    backend = SimpleNamespace(
        join_functions=(("/test_pulse.py", "in_the_rendezvous"),), waiting_in=("/threading.py",)
    )
    line = Line()
    pulse.start(line, backend)
    (thread,) = (one for one in threading.enumerate() if one.name == "sparkdl-pulse")
    try:
        here, elsewhere = line.wait(), in_the_rendezvous(line)
    finally:
        line.is_closed = True
        thread.join()
    assert here.place != elsewhere.place
    assert (here.joining, elsewhere.joining) == (False, True)
    assert here.communicating
    assert here.lingering == ""
    # The main one waits for others, which are looked at as well, and the thread itself is not.
    assert threading.main_thread().native_id in here.threads
    assert thread.native_id not in here.threads


def test_another_thread_that_goes_on_is_seen_while_the_main_one_waits(monkeypatch):
    monkeypatch.setattr(pulse, "PULSE_SECONDS", 0.001)
    may_go_on, may_end = threading.Event(), threading.Event()

    def work():
        may_go_on.wait()
        may_end.wait()

    other, line = threading.Thread(target=work), Line()
    other.start()
    while waits_in(other) is None:
        time.sleep(0.001)
    pulse.start(line, SimpleNamespace(join_functions=(), waiting_in=()))
    (thread,) = (one for one in threading.enumerate() if one.name == "sparkdl-pulse")
    places = set()
    try:
        while len(places) < 2:  # From one line of the main one.
            places.add(line.wait().place)
            may_go_on.set()
    finally:
        may_go_on.set()
        may_end.set()
        line.is_closed = True
        other.join()
        thread.join()


def test_what_a_function_has_is_freed_when_it_returns_whatever_the_pulse_waits_for():
    is_sent, may_end = threading.Event(), threading.Event()

    class Slow:
        def send(self, message: object) -> None:
            is_sent.set()
            may_end.wait()
            raise BrokenPipeError

    def work() -> weakref.ref[object]:
        tensor = threading.Event()  # Anything that can be referred to weakly.
        pulse.start(Slow(), SimpleNamespace(join_functions=(), waiting_in=()))
        assert is_sent.wait(120)
        return weakref.ref(tensor)

    reference = work()
    try:
        assert reference() is None
    finally:
        may_end.set()
        (thread,) = (one for one in threading.enumerate() if one.name == "sparkdl-pulse")
        thread.join()
