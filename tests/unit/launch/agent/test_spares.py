"""Spare workers that wait for the next call. A small process stands in a worker's place."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl_runner.launch.agent import worker_process
from sparkdl_runner.launch.agent.spares import pool
from sparkdl_runner.launch.agent.spares.pool import end_spares, keep_spares, start_workers

# No process starts, answers or ends so late, even on a busy machine.
PATIENCE_SECONDS = 120.0
# Answers the offer of work as a spare does, and stays.
CODE = """
import json, os, socket, struct, sys, time
own = dict(zip(sys.argv[1::2], sys.argv[2::2]))
line = socket.socket(fileno=int(own["--control-fd"]))
if float(own["--spare-seconds"]):
    size = struct.unpack(">IQ", line.recv(12))[0]
    line.recv(size)
    text = json.dumps({"fits": "FITS" not in os.environ}).encode()
    line.sendall(struct.pack(">IQ", len(text), 0) + text)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _small_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "worker.py").write_text(CODE)
    python = tmp_path / "python"
    script = f'#!/bin/sh\nshift 3\nexec "{sys.executable}" -I -S "{tmp_path}/worker.py" "$@"\n'
    python.write_text(script)
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(pool, "REST_SECONDS", 0.0)
    monkeypatch.setattr(pool, "ANSWER_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(worker_process, "KILL_SECONDS", PATIENCE_SECONDS)
    yield
    end_spares()
    assert pool._spares == []


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **more}


def keep(
    number: int, seconds: float = 600.0, *, for_restart: bool = False, **more: str
) -> list[int]:
    """Keeps spares, and returns the process ids of those that have started."""
    keep_spares(
        number,
        seconds,
        backend="torch",
        environment=environment(**more),
        for_restart=for_restart,
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(one._worker is None for one in pool._spares):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return [one._worker.pid for one in pool._spares]


def started(number: int, **more: str) -> list[int]:
    workers = start_workers(
        number, backend="torch", environment=environment(**more), shutdown_grace_seconds=1.5
    )
    try:
        assert {one.grace_seconds for one in workers} == {1.5}
        return [one.pid for one in workers]
    finally:
        for one in workers:
            one.end()


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_the_next_call_takes_spares_and_starts_what_is_missing() -> None:
    spares = keep(1)
    assert len(spares) == 1
    assert keep(1) == spares, "there are enough"
    found = started(2)
    assert found[0] == spares[0]
    assert found[1] not in spares
    assert pool._spares == []
    assert not any(map(is_running, found))


def test_a_call_takes_no_more_than_it_needs() -> None:
    spares = keep(2)
    (taken,) = started(1)
    assert taken in spares
    (left,) = pool._spares
    assert left._worker.pid in set(spares) - {taken}


def test_spares_that_do_not_fit_are_replaced_and_none_are_kept_for_no_time() -> None:
    (first,) = keep(1)
    ended = list(pool._spares)
    (second,) = keep(1, OMP_NUM_THREADS="3")
    assert first != second
    ended += pool._spares
    assert keep(1, 0.0) == []
    for one in ended:
        one.thread.join(PATIENCE_SECONDS)
    assert not any(map(is_running, (first, second)))


def test_a_spare_for_a_restart_is_taken_by_any_call_and_replaced_if_none_comes() -> None:
    (spare,) = keep(1, math.inf, for_restart=True)
    assert "--for-restart" in pool._spares[0]._worker._process.args
    assert keep(1, 30.0, for_restart=True) == [spare], "it waits for another time"
    assert started(1) == [spare]
    (spare,) = keep(1, math.inf, for_restart=True)
    (ended,) = pool._spares
    (other,) = keep(1)
    ended.thread.join(PATIENCE_SECONDS)
    assert other != spare
    assert not is_running(spare)


def test_a_spare_of_another_environment_is_left_where_it_is() -> None:
    (spare,) = keep(1)
    (found,) = started(1, OMP_NUM_THREADS="3")
    assert found != spare
    assert [one._worker.pid for one in pool._spares] == [spare]


def test_a_spare_that_refuses_the_work_is_ended_and_another_worker_is_started() -> None:
    (spare,) = keep(1, FITS="no")
    (found,) = started(1, FITS="no")
    assert found != spare
    assert not is_running(spare)


def test_a_process_that_was_forked_has_none_of_its_parents_spares() -> None:
    (spare,) = keep(1)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not pool._spares and not pool._lock.locked() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert is_running(spare)
