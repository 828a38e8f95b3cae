"""Processes that answer, crash, hang or talk nonsense, and servers that answer whoever knows."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import psutil
import pytest

from one_module import replace_in
from processes import still_running
from sparkdl_runner.doctor import child as child_process
from sparkdl_runner.doctor import examination, meeting, scripts, stage
from sparkdl_runner.doctor.child import Child
from sparkdl_runner.doctor.meeting import Meeting
from sparkdl_runner.errors import LaunchError

TOKEN = b"t" * stage.TOKEN_BYTES


def child(code: str, request: object = None) -> Child:
    return Child([sys.executable, "-c", code], request)


def soon() -> float:
    return time.monotonic() + 300


def test_a_child_is_asked_and_answers_amid_noise():
    code = (
        "import json, sys; asked = json.loads(sys.stdin.readline())\n"
        "print('noise'); print('words', file=sys.stderr)\n"
        "print(json.dumps({'got': asked})); print(json.dumps({'more': 1}))"
    )
    one = child(code, {"a": 1})
    try:
        assert one.answer(soon()) == {"got": {"a": 1}}
        assert one.answer(soon()) == {"more": 1}
        assert one.answer(soon()) == {"error": "it ended with exit code 0"}
        assert one.output() == ["words"]
    finally:
        one.close()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os.kill(os.getpid(), 11)", "it died of SIGSEGV"),
        ("raise SystemExit(3)", "it ended with exit code 3"),
    ],
)
def test_a_child_that_dies_is_told_by_how(code, says):
    one = child(code)
    try:
        assert one.answer(soon()) == {"error": says}
    finally:
        one.close()


def test_a_child_that_does_not_answer_is_told_with_its_last_words():
    code = "import sys; print('first', 'second', 'third', sep='\\n', file=sys.stderr); sys.exit(3)"
    one = child(code)
    try:
        found = one.answer(soon(), words=2)
        assert found == {"error": "it ended with exit code 3; second; third"}
    finally:
        one.close()


def test_a_child_that_hangs_is_ended_with_all_that_it_started(monkeypatch):
    monkeypatch.setattr("sparkdl_runner.doctor.child.GRACE_SECONDS", 0.3)
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sleeper = subprocess.Popen(['sleep', '600'])\n"
        "print('{\"pid\": %d}' % sleeper.pid, flush=True); time.sleep(600)"
    )
    one = child(code)
    sleeper = psutil.Process(one.answer(soon())["pid"])
    assert one.answer(time.monotonic() + 0.1) == {"error": "it did not answer in time"}
    assert one.answer(time.monotonic(), late="no answer") == {"error": "no answer"}
    one.close()
    assert not still_running([sleeper])


def test_a_child_that_cannot_be_killed_is_given_up(monkeypatch):
    """As one that waits for a disk that is gone."""
    monkeypatch.setattr(child_process, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(child_process, "KILL_SECONDS", 0.1)
    one = child("import time; print('{}', flush=True); time.sleep(600)")
    assert one.answer(soon()) == {}
    with pytest.MonkeyPatch.context() as patch:
        replace_in(patch, child_process, "os", killpg=lambda *_: None)
        one.close()
    assert one._process.poll() is None
    one._process.kill()
    one._process.wait()


# ---- what executors do -------------------------------------------------------------------------


@pytest.fixture
def server():
    listener = socket.create_server(("127.0.0.1", 0))
    server = stage.ProbeServer(listener, b"t" * stage.TOKEN_BYTES)
    yield server
    server.close()
    with pytest.raises(OSError, match="Bad file"):
        listener.getsockname()


def probe_until_answered(server) -> tuple[dict, float]:
    """The first answer, and the seconds it took: on a busy machine a probe may time out first."""
    while True:
        began = time.time()
        found = stage.probe("127.0.0.1", server.port, b"t" * stage.TOKEN_BYTES)
        if "seconds_ahead" in found:
            return found, time.time() - began


def test_who_knows_the_token_learns_the_time(server):
    found, seconds = probe_until_answered(server)
    # Of one clock it errs by half of the way there and back at most.
    assert abs(found["seconds_ahead"]) <= seconds / 2
    started = time.monotonic()
    server.wait_for(1, 600)
    assert time.monotonic() - started < 300, "it waits for the client, not for the time"


def test_who_does_not_know_it_learns_nothing(server):
    assert "error" in stage.probe("127.0.0.1", server.port, b"x" * stage.TOKEN_BYTES)
    # One who says nothing holds up nobody for long.
    with socket.create_connection(("127.0.0.1", server.port)):
        probe_until_answered(server)


def test_a_port_that_is_shut_and_one_where_nobody_answers(monkeypatch):
    with socket.socket() as shut:
        shut.bind(("127.0.0.1", 0))
        port = shut.getsockname()[1]
        assert stage.probe("127.0.0.1", port, b"")["error"] == "Connection refused"
    monkeypatch.setattr(stage, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = stage.probe("127.0.0.1", listener.getsockname()[1], b"t" * stage.TOKEN_BYTES)
    assert found == {"error": "no answer within 0.2 s"}


def probe_where_it_answers(words: bytes) -> dict:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            client, _ = listener.accept()
            with client:
                client.recv(100)
                client.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage, "CONNECT_SECONDS", 300)
            found = stage.probe("127.0.0.1", listener.getsockname()[1], b"t" * stage.TOKEN_BYTES)
        thread.join()
    return found


def test_something_else_that_answers():
    found = probe_where_it_answers(b"SSH-2.0-OpenSSH_9.2\r\n")
    assert found == {"error": "something else answers there"}


@pytest.mark.parametrize("ahead", [-900, 900])
def test_a_clock_that_differs_is_ahead_or_behind(ahead, monkeypatch):
    replace_in(monkeypatch, stage, "time", time=lambda: 1_700_000_000.0 + ahead)
    assert probe_where_it_answers(b'{"time": 1700000000.0}') == {"seconds_ahead": ahead}


@pytest.mark.parametrize(
    ("commands", "facts"),
    [
        ("echo '{\"cores\": 2}'", {"cores": 2}),
        ("echo Traceback >&2; echo OSError: no disk >&2", {"error": "OSError: no disk"}),
        ("true", {"error": "it wrote nothing"}),
    ],
)
def test_a_host_is_described_or_the_reason_told(commands, facts):
    script = subprocess.Popen(
        ["sh", "-c", f"cat > /dev/null; {commands}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    task = SimpleNamespace(request={"seconds": 300})
    assert stage._described(script, task) == facts


# ---- the script that describes a host ----------------------------------------------------------


def describe(**changes: object) -> dict:
    request = {
        "scripts": {"native": "", "folder": scripts.text_of("folder")},
        "native": [],
        "directories": {},
        "folders": [],
        "marker": ".marker",
        "servers": [],
        "seconds": 300,
        **changes,
    }
    patient = scripts.text_of("host").replace("min(seconds, 10)", "seconds")
    done = subprocess.run(
        [sys.executable, "-c", patient],
        input=json.dumps(request) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_native_libraries_that_crash_or_hang_are_told_and_harm_nobody():
    crashing = (
        'import os; print(\'\\x1e{"torch": {"version": "9"}}\', flush=True)\n'
        "os.kill(os.getpid(), 11)"
    )
    facts = describe(native=["torch", "horovod"], scripts={"native": crashing})
    assert facts["native"] == {"torch": {"version": "9"}, "end": "it died of SIGSEGV"}
    hanging = {"native": "import time; time.sleep(600)"}
    facts = describe(native=["torch"], scripts=hanging, seconds=0.5)
    assert facts["native"] == {"end": "it did not finish within 0.5 s"}


def test_a_shared_folder_shows_the_drivers_file_and_keeps_no_other(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    (shared / ".marker").touch()
    facts = describe(folders=[str(shared), f"file://{own}", f"memory://{tmp_path}"])
    assert facts["folders"][str(shared)] == {"seen": True}
    assert facts["folders"][f"file://{own}"] == {"seen": False}
    assert facts["folders"][f"memory://{tmp_path}"]["seen"] is False
    assert [path.name for path in shared.iterdir()] == [".marker"]
    assert not list(own.iterdir())


def test_the_drivers_file_stays_until_it_is_told_to_go(tmp_path, monkeypatch):
    monkeypatch.setattr("sparkdl_runner.doctor.child.GRACE_SECONDS", 300)
    for end in (Child.close, lambda one: os.kill(one._process.pid, signal.SIGTERM)):
        one = examination.keep_file(str(tmp_path), ".marker")
        assert one.answer(soon()) == {}
        assert (tmp_path / ".marker").exists()
        end(one)
        one.close()
        assert not list(tmp_path.iterdir())


def test_a_tool_for_gpus_that_lists_them_and_one_that_cannot(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nfor n in 1 2; do echo $n, GPU-$n, NVIDIA A10G, 550.1; done\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = describe()["gpus"]
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-1", "GPU-2"]
    tool.write_text("#!/bin/sh\necho Failed to initialize NVML: mismatch\nexit 18\n")
    found = describe()["gpus"]
    assert found["gpus"] == []
    assert "NVML: mismatch" in found["error"]


def test_a_tool_for_gpus_that_does_not_start(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/nowhere/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cannot be started: No such file" in describe()["gpus"]["error"]


def test_a_server_that_a_host_does_not_reach():
    with socket.socket() as shut:
        shut.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{shut.getsockname()[1]}/health"
        assert "Connection refused" in describe(servers=[url])["servers"][url]


# ---- tasks that meet by way of the driver --------------------------------------------------------


@pytest.fixture
def two_expected(monkeypatch):
    monkeypatch.setattr(meeting, "WAIT_SECONDS", 600.0)
    two = Meeting(socket.create_server(("127.0.0.1", 0)), TOKEN, 2)
    yield two
    two.close()


def test_tasks_wait_for_one_another_and_who_comes_later_is_told_so(two_expected):
    assert stage.meet("127.0.0.1", two_expected.port, b"x" * stage.TOKEN_BYTES, "?") == ["?"]
    task = stage.HostTask(
        token=TOKEN,
        driver=("127.0.0.1", 1),
        single_host=True,  # As through Spark Connect, where executors are on the client's host.
        driver_prefix="",
        script="",
        request={},
        meeting_port=two_expected.port,
    )
    with ThreadPoolExecutor() as pool:
        first = pool.submit(task.gather, None, "a")
        second = pool.submit(stage.meet, "127.0.0.1", two_expected.port, TOKEN, "b")
        assert sorted(second.result()) == ["a", "b"]
        assert first.result() == []  # Nobody probes a network there.
    assert task.gather(None, "c") is None
    told = two_expected.answers(lambda: ['{"place": 1}', '{"place": 1}'], pytest.fail)
    assert told == {"hosts": [{"place": 1}], "tasks": 2}


def test_who_comes_in_time_does_not_wait_for_ever_and_a_stage_of_nobody_is_cancelled(monkeypatch):
    monkeypatch.setattr(meeting, "WAIT_SECONDS", 0.3)
    alone = Meeting(socket.create_server(("127.0.0.1", 0)), TOKEN, 2)
    cancelled = threading.Event()

    def collect():
        assert cancelled.wait(600)
        raise ValueError("cancelled")

    with closing(alone), pytest.raises(LaunchError, match=r"no executor has come within 0\.3 s"):
        alone.answers(collect, cancelled.set)
    monkeypatch.setattr(meeting, "WAIT_SECONDS", 3.0)
    alone = Meeting(socket.create_server(("127.0.0.1", 0)), TOKEN, 2)
    with closing(alone):
        assert stage.meet("127.0.0.1", alone.port, TOKEN, "a") in (["a"], None)
