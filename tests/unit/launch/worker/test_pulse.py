"""What a worker's pulse says of where its main thread is."""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace

from sparkdl_runner.launch.worker import pulse


class Line:
    """Takes pulses while one is waited for; the thread that sends them ends with ``close``."""

    def __init__(self) -> None:
        self.taken: list[dict] = []
        self.is_closed = False
        self.settled = threading.Event()

    def send(self, message: dict) -> None:
        if self.is_closed:
            raise BrokenPipeError
        self.taken.append(message)
        if len(self.taken) > 1 and self.taken[-2]["place"] == message["place"]:
            self.settled.set()

    def wait(self) -> dict:
        """What pulses say as long as the main thread waits here."""
        self.settled.clear()
        self.taken.clear()
        assert self.settled.wait(30)
        return self.taken[-1]


def in_the_rendezvous(line: Line) -> dict:
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
    assert here["place"] != elsewhere["place"]
    assert (here["joining"], elsewhere["joining"]) == (False, True)
    assert here["communicating"]
    assert here["lingering"] == ""
    # The main one waits for others, which are looked at as well, and the thread itself is not.
    assert threading.main_thread().native_id in here["threads"]
    assert thread.native_id not in here["threads"]


def test_another_thread_that_goes_on_is_seen_while_the_main_one_waits(monkeypatch):
    monkeypatch.setattr(pulse, "PULSE_SECONDS", 0.001)
    may_go_on, may_end = threading.Event(), threading.Event()

    def work():
        may_go_on.wait()
        may_end.wait()

    other, line = threading.Thread(target=work), Line()
    other.start()
    pulse.start(line, SimpleNamespace(join_functions=(), waiting_in=()))
    (thread,) = (one for one in threading.enumerate() if one.name == "sparkdl-pulse")
    places = []
    try:
        while len(places) < 300 and len(set(places)) < 2:  # From one line of the main one.
            places.append(line.wait()["place"])
            may_go_on.set()
    finally:
        may_go_on.set()
        may_end.set()
        line.is_closed = True
        other.join()
        thread.join()
    assert len(set(places)) == 2


def test_what_a_function_has_is_freed_when_it_returns_whatever_the_pulse_waits_for():
    is_sent, may_end = threading.Event(), threading.Event()

    class Slow:
        def send(self, message: object) -> None:
            is_sent.set()
            may_end.wait(30)
            raise BrokenPipeError

    def work() -> weakref.ref[object]:
        tensor = threading.Event()  # Anything that can be referred to weakly.
        pulse.start(Slow(), SimpleNamespace(join_functions=(), waiting_in=()))
        assert is_sent.wait(30)
        return weakref.ref(tensor)

    reference = work()
    try:
        assert reference() is None
    finally:
        may_end.set()
        (thread,) = (one for one in threading.enumerate() if one.name == "sparkdl-pulse")
        thread.join()
