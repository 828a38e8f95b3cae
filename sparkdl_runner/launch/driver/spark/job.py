"""A Spark job in a thread of its own, with a name in Spark's UI and a tag to cancel it by."""

from __future__ import annotations

import atexit
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sparkdl_runner.errors import RunCancelledError
from sparkdl_runner.launch.driver.calls.interruptible import wait_until_done

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")


class SparkAction(Generic[T]):
    """A Spark action in a thread of its own, with the caller's job group and other properties.

    Py4J gives each thread one connection, on which the JVM answers in order. Were the action on
    the caller's, a Ctrl-C there could cancel nothing before the action had ended.

    Args:
        action: Returns its result.
        thread: Its kind of thread; None for one that has the caller's properties.
    """

    def __init__(
        self,
        action: Callable[[], T],
        thread: type[threading.Thread] | None = None,
    ) -> None:
        kind: Callable[..., threading.Thread] | None = thread
        if kind is None:
            from pyspark import InheritableThread

            kind = InheritableThread

        self._end: Future[T] = Future()
        self._action = action
        self._thread = kind(target=self._run, name="sparkdl-job", daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Waits for the action; may be interrupted. Raises what the action raised."""
        wait_until_done([self._end])
        return self._end.result()

    def interrupt(self) -> None:
        """Lets ``result`` raise RunCancelledError; its caller then cancels the action."""
        self.give_up(RunCancelledError("The Spark job is to be cancelled."))

    def give_up(self, error: Exception) -> None:
        """Lets ``result`` raise an error, whatever the action does."""
        with suppress(InvalidStateError):  # The action has just ended.
            self._end.set_exception(error)

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until the action has ended in any way, at most so long. Returns whether it has."""
        wait([self._end], timeout_seconds)
        if self._end.done():
            self._thread.join(timeout_seconds)
        return self._end.done()

    def _run(self) -> None:
        with suppress(InvalidStateError):  # No thread waits for it any more.
            try:
                self._end.set_result(self._action())
            except InvalidStateError:
                raise
            except BaseException as error:
                self._end.set_exception(error)


@contextmanager
def tagged(context: SparkContext, num_proc: int, backend: str) -> Iterator[str]:
    """Names the job in Spark's UI, and tags it so that it alone can be cancelled."""
    tag = f"sparkdl-runner-{uuid.uuid4().hex}"
    description = context.getLocalProperty("spark.job.description")
    context.setLocalProperty(
        "spark.job.description", description or f"sparkdl_runner: {num_proc} ranks, {backend}"
    )
    context.addJobTag(tag)
    try:
        yield tag
    finally:
        with suppress(Exception):  # The session may have ended meanwhile.
            context.removeJobTag(tag)
            context.setLocalProperty("spark.job.description", description)  # type: ignore[arg-type]


_jvm_will_exit = False


def let_the_jvm_exit(context: SparkContext) -> None:
    """Ends Spark's barrier timer when this process ends.

    Up to Spark 3.5 that timer's thread is no daemon. With a local master it lives in the driver's
    JVM, which under spark-submit would then wait for it for ever after the script's end.
    """
    global _jvm_will_exit
    if _jvm_will_exit or int(context.version.partition(".")[0]) >= 4:
        return
    _jvm_will_exit = True
    jvm: Any = context._jvm
    try:
        barrier = jvm.java.lang.Class.forName("org.apache.spark.BarrierTaskContext$")
        timer = barrier.getMethod("org$apache$spark$BarrierTaskContext$$timer", None)
        cancel = timer.invoke(barrier.getField("MODULE$").get(None), None).cancel
    except Exception:
        return  # Only a notebook's JVM forbids this, and that one need not exit.

    def cancel_if_it_still_runs() -> None:
        with suppress(Exception):  # The JVM may be gone by then.
            cancel()

    atexit.register(cancel_if_it_still_runs)
