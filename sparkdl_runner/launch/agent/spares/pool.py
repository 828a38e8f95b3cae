"""Spare workers: started after a call, and taken by the next, which then need not import torch.

Each process that starts workers (an agent's Python process, or the driver for ranks of its own
host) holds its own. They end with it.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress

from sparkdl_runner.launch.agent.spares.start_conditions import StartConditions
from sparkdl_runner.launch.agent.worker_process import WorkerProcess

# The call's result travels first: importing torch would take the processors from it.
REST_SECONDS = 0.2
# How long a spare that is still importing may take to answer.
ANSWER_SECONDS = 20.0


def start_workers(
    number: int, *, backend: str, environment: Mapping[str, str], shutdown_grace_seconds: float
) -> list[WorkerProcess]:
    """Starts workers, or takes spares that are like them.

    The calling thread must live until they have ended: see ``WorkerProcess``.

    Args:
        number: How many.
        backend: The backend's name.
        environment: The whole environment of each.
        shutdown_grace_seconds: See ``RunConfig``.

    Raises:
        OSError: One could not be started; none is left.
    """
    conditions = StartConditions.now(backend, environment)
    workers = [
        worker
        for spare in _take(number, conditions, environment)
        if (worker := spare.given()) is not None
    ]
    try:
        for worker in workers:
            worker.renew(environment, shutdown_grace_seconds)
        while len(workers) < number:
            worker = WorkerProcess(
                backend=backend,
                environment=environment,
                shutdown_grace_seconds=shutdown_grace_seconds,
            )
            workers.append(worker)
    except BaseException:
        for worker in workers:
            worker.end()
        raise
    return workers


def keep_spares(
    number: int,
    seconds: float,
    *,
    backend: str,
    environment: Mapping[str, str],
    for_restart: bool = False,
) -> None:
    """Starts spares in the background until there are ``number``, and ends those that do not fit.

    Args:
        number: How many the next call may take.
        seconds: How long each waits for it from now on; 0 for no spares.
        backend: The backend's name.
        environment: What each starts with.
        for_restart: Whether they are to go on with a training that runs now.
    """
    with _lock:
        wanted = (StartConditions.now(backend, environment), for_restart) if seconds else None
        for spare in [spare for spare in _spares if spare.kind != wanted]:
            spare.end()
        for spare in _spares:
            spare.wait_for(seconds)
        if wanted is not None:
            missing = number - len(_spares)
            _spares.extend(_Spare(*wanted, environment, seconds) for _ in range(missing))


def end_spares() -> None:
    """Ends the spares of this process, and waits until they are gone."""
    with _lock:
        ended = list(_spares)
        for spare in ended:
            spare.end()
    for spare in ended:
        spare.thread.join()


_lock = threading.Lock()
_spares: list[_Spare] = []


def _take(number: int, conditions: StartConditions, environment: Mapping[str, str]) -> list[_Spare]:
    """Offers the work to spares that fit. Returns those that will answer."""
    with _lock:
        fitting = [spare for spare in _spares if spare.conditions == conditions]
        return [spare for spare in fitting[:number] if spare.ask(environment)]


def _forget() -> None:
    """In a process that was forked: spares are the other's children, which has their threads."""
    global _lock
    _lock = threading.Lock()
    _spares.clear()


os.register_at_fork(after_in_child=_forget)


class _Spare:
    """One spare, with a thread that lives as long as its process."""

    def __init__(
        self,
        conditions: StartConditions,
        for_restart: bool,
        environment: Mapping[str, str],
        seconds: float,
    ) -> None:
        self.conditions = conditions
        self.kind = conditions, for_restart
        self._environment = environment
        self._seconds = seconds
        self._dropped = threading.Event()
        self._worker: WorkerProcess | None = None
        self.thread = threading.Thread(target=self._hold, name="sparkdl-spare", daemon=True)
        self.thread.start()

    def wait_for(self, seconds: float) -> None:
        """Has it wait for so long from now on. Call it with the lock."""
        if seconds == self._seconds == math.inf:
            return  # It does so, and to be told would keep it from importing more.
        self._seconds = seconds
        if self._worker is not None:
            with suppress(OSError):  # It has just ended.
                self._worker.line.send_values({"seconds": seconds})

    def ask(self, environment: Mapping[str, str]) -> bool:
        """Offers it work. Call it with the lock, once; it is no spare from then on."""
        _spares.remove(self)
        if self._worker is None:
            self._dropped.set()
            return False
        with suppress(OSError):  # It has just ended.
            self._worker.line.send_values({"environment": dict(environment)})
        return True

    def given(self) -> WorkerProcess | None:
        """The worker, if it takes the work it was offered. Waits for its answer."""
        worker = self._worker
        assert worker is not None  # noqa: S101 - it was asked
        try:
            if worker.line.wait(ANSWER_SECONDS) and worker.line.receive()[0]["fits"]:
                return worker
        except EOFError:
            pass
        worker.end()
        return None

    def end(self) -> None:
        """Ends it; its thread removes what is left. Call it with the lock."""
        _spares.remove(self)
        self._dropped.set()
        if self._worker is not None:
            # Its thread reaps it only under the lock, so the number is no other process's.
            self._worker.signal_group(signal.SIGKILL)

    def _hold(self) -> None:
        _, for_restart = self.kind
        # Nobody waits for the result of a training that is to be started again.
        if self._dropped.wait(0.0 if for_restart else REST_SECONDS):
            return
        with _lock:
            if self._dropped.is_set():
                return
            try:
                if StartConditions.now(self.conditions.backend, self._environment) != (
                    self.conditions
                ):
                    raise OSError("the working folder, say, has been changed meanwhile")
                self._worker = WorkerProcess(
                    backend=self.conditions.backend,
                    environment=self._environment,
                    shutdown_grace_seconds=0.0,
                    spare_seconds=self._seconds,
                    for_restart=for_restart,
                )
            except OSError:
                _spares.remove(self)  # There is no memory for it, say.
                return
        with suppress(ChildProcessError):  # Who has taken it has reaped it.
            self._worker.await_exit()
        with _lock:
            if self in _spares:
                _spares.remove(self)
            elif not self._dropped.is_set():
                return  # It was taken.
        self._worker.end()
