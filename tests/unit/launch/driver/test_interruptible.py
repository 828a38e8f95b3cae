"""A signal ends the main thread's wait, also if another thread was handed it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.driver.calls.interruptible import wait_until_done
from sparkdl_runner.launch.driver.calls.run_future import RunFuture
from sparkdl_runner.launch.driver.spark.job import SparkAction


class InterruptedByTestError(Exception):
    pass


def is_waiting():
    """Whether the main thread is where a thread waits for another."""
    frame = sys._current_frames()[threading.main_thread().ident]
    return frame.f_code is threading.Condition.wait.__code__


@pytest.fixture
def signal_to_another_thread():
    """Sends a signal to a thread that is not the main one, and lets its handler raise.

    Yields an event to set when the main thread begins to wait: the signal comes once it does.
    """

    def end(*_: object) -> None:
        raise InterruptedByTestError

    before = signal.signal(signal.SIGUSR1, end)
    begins, is_over = threading.Event(), threading.Event()
    other = threading.Thread(target=is_over.wait)
    other.start()

    def send():
        begins.wait()
        while not is_waiting() and not is_over.is_set():
            time.sleep(0.001)
        if not is_over.is_set():
            signal.pthread_kill(other.ident, signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    yield begins
    is_over.set()
    begins.set()
    for thread in (sender, other):
        thread.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def future():
    """One that is done so late that a test which waits for it fails."""
    made: Future[int] = Future()
    late = threading.Timer(300.0, made.set_result, [0])
    late.start()
    yield made
    late.cancel()
    late.join()


def job_of(future):
    job = SparkAction.__new__(SparkAction)  # Without Spark's thread.
    job._end = future
    return job


def run_of(future):
    run = RunFuture(SimpleNamespace(), SimpleNamespace())
    future.add_done_callback(lambda _: run.set_result(0))
    return run


@pytest.mark.parametrize(
    "wait",
    [
        lambda future: wait_until_done([future]),
        lambda future: job_of(future).result(),
        lambda future: run_of(future).result(),
        lambda future: run_of(future).exception(),
    ],
    ids=["futures", "Spark job", "result of a run", "error of a run"],
)
def test_a_signal_that_another_thread_was_handed_ends_the_wait(
    signal_to_another_thread, future, wait
):
    def begin():
        signal_to_another_thread.set()
        wait(future)

    with pytest.raises(InterruptedByTestError):
        begin()
    assert not future.done()


def test_a_run_may_still_be_asked_with_a_limit(future):
    with pytest.raises(TimeoutError):
        run_of(future).result(timeout=0.01)
