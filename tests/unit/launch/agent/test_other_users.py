"""A shared host is told from one's own, and refused where that is asked for."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.agent.host import other_users
from sparkdl_runner.launch.agent.rank_task import RankTask
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.local_launcher import LocalGang
from sparkdl_runner.launch.wire.attempt import AttemptSpec

# The tests that run beside this process have neighbours of other numbers.
NEIGHBOUR = 20_000 + os.getpid() % 30_000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
refusing = RunConfig(refuse_shared_hosts=True)


@contextlib.contextmanager
def process_of(user: int) -> Iterator[None]:
    """Runs a process of another user, which holds a socket."""
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(flush=True); input()"
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", code],
        user=user,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.communicate(b"\n")


@as_root
@pytest.mark.parametrize("hidden", [False, True])
def test_a_neighbour_is_seen_even_where_processes_are_hidden(monkeypatch, hidden) -> None:
    if hidden:
        monkeypatch.setattr(psutil, "process_iter", lambda _: [])
    assert NEIGHBOUR not in other_users.other_users()
    with process_of(NEIGHBOUR):
        assert NEIGHBOUR in other_users.other_users()


@as_root
def test_a_neighbour_without_sockets_is_seen_as_well(monkeypatch) -> None:
    monkeypatch.setattr(other_users, "_TABLES", ())
    with process_of(NEIGHBOUR):
        assert NEIGHBOUR in other_users.other_users()


def test_one_who_is_logged_in_is_seen(monkeypatch) -> None:
    monkeypatch.setattr(psutil, "users", lambda: [SimpleNamespace(name="a neighbour")])
    found = SimpleNamespace(pw_uid=NEIGHBOUR)
    monkeypatch.setattr(other_users.pwd, "getpwnam", lambda name: found)
    assert NEIGHBOUR in other_users.other_users()


@pytest.mark.parametrize(
    ("uid", "expected"),
    [(0, False), (999, False), (1000, True), (61184, False), (65534, False), (1_400_000_000, True)],
)
def test_the_system_is_no_neighbour(uid: int, expected: bool) -> None:
    assert other_users.is_ordinary(uid) is expected


ATTEMPT = AttemptSpec(backend="torch", function=b"", config=refusing, run="run")


def start_here() -> None:
    LocalGang(ATTEMPT, 1, ()).run()


def start_on_spark() -> None:
    nothing: Any = None
    task = RankTask(
        attempt=ATTEMPT,
        channel=nothing,
        single_host=True,
        most_result_bytes=1,
        sends_value=False,
        spare=nothing,
    )
    task._run(nothing)


@pytest.mark.parametrize("start", [start_here, start_on_spark])
def test_a_shared_host_is_refused_before_anything_listens(monkeypatch, start) -> None:
    monkeypatch.setattr(other_users, "other_users", lambda: frozenset({1001, 1002}))
    monkeypatch.setattr(socket, "socket", None)
    with pytest.raises(LaunchError, match=r"is shared.* there: 2 \(uid 1001, 1002; ") as told:
        start()
    assert socket.gethostname() in str(told.value)


def test_a_host_of_ones_own_is_not_refused(monkeypatch) -> None:
    monkeypatch.setattr(other_users, "other_users", frozenset)
    other_users.check_host_is_not_shared()
