"""Runs through Spark Connect that are cancelled, and sessions, servers and clients that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
import rank_functions
from connect_server import started, use, wait_for

from ports import reusable_port
from processes import running, wait_until_gone, workers
from sparkdl_runner import DistributedRunner, RunCancelledError, RunConfig, current_world

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("light_ranks")]


def light(**settings) -> DistributedRunner:
    config = RunConfig(
        **{"driver_log_verbosity": "log_callback_only", "require_collectives": False, **settings}
    )
    return DistributedRunner(num_proc=2, backend="horovod", run_config=config)


def once_ranks_run(action) -> None:
    """Calls it in the background."""

    def wait() -> None:
        wait_for(lambda: len(workers()) >= 4)
        action()

    threading.Thread(target=wait, daemon=True).start()


def test_cancel_ends_all_ranks(session):
    future = light().submit(rank_functions.sleep_in_ranks, seconds=600)
    once_ranks_run(future.cancel)
    with pytest.raises(CancelledError):
        future.result()
    assert wait_until_gone("sparkdl_runner.launch.worker")


def test_ctrl_c_ends_all_ranks(session):
    once_ranks_run(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        light().run(rank_functions.sleep_in_ranks, seconds=600)
    assert wait_until_gone("sparkdl_runner.launch.worker")


def test_interrupt_all_ends_all_ranks(session):
    once_ranks_run(session.interruptAll)
    with pytest.raises(RunCancelledError, match="was cancelled before the ranks had finished"):
        light().run(rank_functions.sleep_in_ranks, seconds=600)


def test_a_session_that_is_stopped_ends_its_ranks(new_session):
    once_ranks_run(new_session().stop)
    with pytest.raises(RunCancelledError, match="had finished: its session was stopped"):
        light().run(rank_functions.sleep_in_ranks, seconds=600)


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_the_first_look_at_the_executors_waits_for_a_slot_and_can_be_ended(
    how, busy, new_session, capfd
):
    session, told = new_session(), []

    def is_told() -> bool:
        told.append(capfd.readouterr().err)
        return "waiting until a slot is free" in "".join(told)

    with busy(4):
        future = light().submit(rank_functions.world_size)
        wait_for(lambda: is_told() or future.done())
        if how == "stop":
            session.stop()
            with pytest.raises(RunCancelledError, match="stopped before the ranks had started"):
                future.result()
        else:
            future.cancel()
            with pytest.raises(CancelledError):
                future.result()


def test_two_users_of_one_server_do_not_meet(new_session, tmp_path):
    may_end = tmp_path / "may-end"
    sessions = {name: new_session(f"/;user_id={name}") for name in ("ann", "bob")}

    def call(name: str) -> list[str]:
        use(sessions[name])
        return light().gather(lambda: f"{name} {current_world().size}")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(call, sessions)) == [["ann 2"] * 2, ["bob 2"] * 2]

    def wait_for_the_end() -> str:
        while not may_end.exists():
            time.sleep(0.05)
        return "not interrupted"

    use(sessions["bob"])
    future = light().submit(wait_for_the_end)
    wait_for(lambda: len(workers()) >= 4 or future.done())
    assert sessions["ann"].interruptAll() == []
    may_end.touch()
    assert future.result() == "not interrupted"


CLIENT = """
import sys
from pyspark.sql import SparkSession
from sparkdl_runner import DistributedRunner, LaunchError, RunConfig, RunnerError
def main():
    import subprocess, time
    subprocess.Popen(['sleep', '4716'])
    time.sleep(600)
SparkSession.builder.remote(sys.argv[1]).getOrCreate()
config = RunConfig(heartbeat_timeout_seconds=5)
for _ in range(2):
    try:
        DistributedRunner(num_proc=2, backend="horovod", run_config=config).run(main)
    except RunnerError as error:
        print(type(error).__name__, error, flush=True)
    sys.stdin.readline()
"""


def client(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def wait_until_both_ranks_run(program: subprocess.Popen[str]) -> None:
    wait_for(lambda: len(running("4716")) == 2 or program.poll() is not None)
    assert program.poll() is None


@pytest.mark.system
def test_a_client_that_is_killed_leaves_no_rank(server):
    with client(server.url) as program:
        wait_until_both_ranks_run(program)
        program.kill()
    assert wait_until_gone("4716")
    assert wait_until_gone("sparkdl_runner.launch.worker")


@pytest.mark.system
def test_a_server_that_is_killed_is_told_and_one_that_was_started_again_refused(
    bare, tmp_path, server
):
    port = reusable_port()
    with started(tmp_path / "first", bare, port=port) as first, client(first.url) as program:
        (first.modules / "torch.py").write_text("raise ImportError\n")
        wait_until_both_ranks_run(program)
        first.kill()
        said = program.stdout.readline()
        assert said.startswith(
            f"RunnerError The Spark Connect server at 127.0.0.1:{port} does not answer: it has "
        )
        with started(tmp_path / "second", bare, port=port) as second:
            program.stdin.write("\n")
            program.stdin.flush()
            said = program.stdout.readline()
            assert said.startswith(
                "LaunchError The Spark Connect server does not know this session any more: "
            )
            second.kill()
        # pyspark would ask the server for ten minutes before the process ends.
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.wait(300) == 0
