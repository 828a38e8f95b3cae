"""What the script tells of the host and the Python that run it."""

from __future__ import annotations

import io
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import IO

import psutil
import pytest

from hostile_server import MOST_BYTES, Hostile
from sparkdl_runner.doctor.scripts import host


def test_a_program_is_told_by_its_code_its_output_and_its_errors() -> None:
    done = host.run(["sh", "-c", "echo out; echo err >&2; exit 4"], 300)
    assert done == (4, "out\n", "err\n")
    assert host.run(["/nowhere/tool"], 300) == (
        126,
        "",
        "/nowhere/tool cannot be started: No such file or directory",
    )
    code, output, errors = host.run(["sh", "-c", "echo before; exec sleep 600"], 0.05)
    assert (code, output.strip() in ("", "before"), errors) == (None, True, "")


def answers_of(code: str, seconds: float = 300.0) -> dict[str, object]:
    """What a script tells whose Python is a shell here, which starts in a tenth of the time."""
    return host.run_script(code, ["given"], seconds)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            r"""printf 'noise\n\036{"a": 1}\nwords\036{"b": [2]}\n'""",
            {"a": 1, "b": [2]},
        ),
        (r"""printf '\036{"a": 1}\n'; kill -SEGV $$""", {"a": 1, "end": "it died of SIGSEGV"}),
        (
            "printf 'one\ntwo\n' >&2; exit 3",
            {"end": "it ended with exit code 3: two"},
        ),
        ("exit 5", {"end": "it ended with exit code 5: it wrote nothing"}),
        (f"echo {'x' * 400} >&2; exit 1", {"end": f"it ended with exit code 1: {'x' * 300}"}),
    ],
)
def test_answers_are_kept_also_of_a_script_that_ends_badly(
    script: str, told: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("sh"))
    assert answers_of(script) == told


def test_a_script_that_hangs_is_told_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("sh"))
    assert answers_of("exec sleep 600", 0.05) == {"end": "it did not finish within 0.05 s"}


def test_installed_packages_have_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, needs in (
        ("torch", ""),
        ("pyspark", "Requires-Dist: pyarrow>=15.0.0 ; extra == 'sql'\n"),
    ):
        folder = tmp_path / f"{name}-2.5.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n{needs}"
        )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    assert host.packages() == {"torch": "2.5"}
    # One that has no record.
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()
    sys.path_importer_cache.pop(str(tmp_path), None)
    assert host.packages() == {"torch": "2.5", "horovod": "unknown"}
    assert host.needed_by_spark() == {"pyarrow": "15.0.0"}


def test_the_record_of_horovods_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert host.horovod_record() == {}
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "metadata.json").write_text('{"pytorch": "2.13.0"}')
    record = tmp_path / "horovod-0.28.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28\n")
    (record / "direct_url.json").write_text('{"url": "file:///secret/torch%2B2.13/horovod.whl"}')
    sys.path_importer_cache.pop(str(tmp_path), None)
    assert host.horovod_record() == {"torch": "2.13.0", "wheel_folder": "torch+2.13"}


def gpu_tool(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_gpus_are_what_their_own_tool_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_tool(tmp_path, "echo '0, GPU-a, NVIDIA H100, 550.1'; echo 'a warning'", monkeypatch)
    found = {"index": "0", "uuid": "GPU-a", "name": "NVIDIA H100", "driver_version": "550.1"}
    assert host.gpus(30) == {"gpus": [found]}
    gpu_tool(tmp_path, "echo 'no driver'; echo 'at all' >&2; exit 9", monkeypatch)
    assert host.gpus(30) == {"gpus": [], "error": "no driver\nat all"}
    gpu_tool(tmp_path, "echo '0, GPU-a, NVIDIA H100, 550.1'; exit 9", monkeypatch)
    assert host.gpus(30)["gpus"] == [found]
    assert "error" in host.gpus(30)
    gpu_tool(tmp_path, "exit 9", monkeypatch)
    assert host.gpus(30)["error"] == "nvidia-smi ended with 9"
    gpu_tool(tmp_path, "exec sleep 600", monkeypatch)
    told = "nvidia-smi did not answer within 0.05 s"
    assert host.gpus(0.05) == {"gpus": [], "error": told}
    monkeypatch.setenv("PATH", "")
    assert host.gpus(30) == {"gpus": []}


def test_a_directory_that_is_not_there_yet_is_judged_by_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = os.statvfs(tmp_path)  # Others write to this disk meanwhile.
    monkeypatch.setattr(os, "statvfs", {str(tmp_path): space, "/proc": space}.__getitem__)
    told = host.directory(str(tmp_path / "a" / "b"))
    assert told["free_bytes"] == space.f_bavail * space.f_frsize
    assert told["free_inodes"] is None or told["free_inodes"] > 0
    assert "error" not in told
    assert not list(tmp_path.iterdir())
    # A folder of the kernel's own, in which nobody makes files.
    assert "error" in host.directory("/proc")


def test_directories_are_those_asked_for_and_the_one_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = host.directories({"/proc": "checkpoints"})
    purposes = {path: about["purpose"] for path, about in told.items()}
    assert purposes == {"/proc": "checkpoints", str(tmp_path): "temporary files"}
    assert told[str(tmp_path)]["free_bytes"] > 0


def test_free_memory_is_that_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("/proc/meminfo").read_text()  # The next reading may differ by any amount.

    def open_once(path: str) -> IO[str]:
        return io.StringIO(text) if path == "/proc/meminfo" else open(path)

    monkeypatch.setattr(host, "open", open_once, raising=False)
    line = next(one for one in text.splitlines() if "Available" in one)
    told = host.memory()
    assert told["available_bytes"] == int(line.split()[1]) * 1024
    if "limit_bytes" in told:
        assert 0 < told["used_bytes"] <= told["limit_bytes"] < 1 << 60


def test_a_host_has_a_name_and_the_address_to_which_it_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert host.name() == {"name": "localhost", "leads_to": "127.0.0.1"}
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    monkeypatch.setattr(socket, "gethostbyname", refused)
    assert host.name() == {"name": "no-such-host.invalid", "error": "Name not known"}


def refused(*_: object) -> None:
    raise OSError("Name not known")


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/")))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_is_there_whatever_it_answers(address: str) -> None:
    assert host.server(f"{address}/200", 300) is None
    assert host.server(f"{address}/401", 300) is None
    with socket.socket() as shut:
        shut.bind(("127.0.0.1", 0))
        port = shut.getsockname()[1]
        assert "refused" in str(host.server(f"http://127.0.0.1:{port}", 300))


@pytest.mark.parametrize(
    ("beginning", "piece", "pause_seconds", "seconds", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.1, 0.3, "no complete HTTP header came within 0.3 s"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", b"x" * (1 << 16), 0.0, 300, None),
        (b"HTTP/1.1 308 Moved\r\nLocation: /x\r\n\r\n", b"x", 0.1, 300, None),
    ],
    ids=["a head that drips", "a redirection without end", "one that drips"],
)
def test_a_server_is_neither_waited_for_nor_read_without_end(
    monkeypatch: pytest.MonkeyPatch,
    beginning: bytes,
    piece: bytes,
    pause_seconds: float,
    seconds: float,
    said: str | None,
) -> None:
    # The next byte may come late. That there is one again and again is what keeps it waiting.
    asked = host.asked
    monkeypatch.setattr(host, "asked", lambda url, _: asked(url, 300))
    hostile = Hostile()
    hostile.beginning, hostile.piece, hostile.pause_seconds = beginning, piece, pause_seconds
    try:
        assert host.server(hostile.uri, seconds) == said
    finally:
        hostile.close()
    assert hostile.sent_bytes < MOST_BYTES


def asked_of_a_folder(script: str, seconds: float) -> dict[str, object]:
    """The answer of a folder's process, whose Python is a shell here."""
    return host.folder("/a", {"marker": "m", "scripts": {"folder": script}, "seconds": seconds})


def test_a_folders_process_tells_its_line_amid_noise_or_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("sh"))
    assert asked_of_a_folder("""echo noise; echo '{"found": 2}'""", 300) == {"found": 2}
    began = psutil.Process().children()
    late = asked_of_a_folder("exec sleep 600", 0.05)
    assert late == {"error": "no answer came within 0.05 s"}
    assert psutil.Process().children() == began


def test_each_executor_looks_for_the_drivers_file_and_has_a_file_of_its_own() -> None:
    request = {
        "marker": "m1",
        "scripts": {"folder": "import sys; print(sys.argv[1])"},
        "seconds": 300,
    }
    assert host.folder("file:///a", request) == {
        "url": "file:///a",
        "name": f"m1-{socket.gethostname()}-{os.getpid()}",
        "look_for": "m1",
    }
