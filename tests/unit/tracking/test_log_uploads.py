"""Logs reach MLflow while they grow: what has changed, in its own thread, and once in the end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.tracking.run import log_uploads
from sparkdl_runner.tracking.run.log_uploads import LogUploads

WAIT_SECONDS = 60


class Client:
    """Keeps what is uploaded; fails, or hangs, where that is asked for."""

    def __init__(self) -> None:
        self.uploads: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.tags: list[tuple[str, str, str]] = []
        self.fails = 0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def log_artifact(self, run_id: str, path: str, folder: str) -> None:
        assert run_id == "r"
        self.goes_on.wait(WAIT_SECONDS)
        if self.fails:
            self.fails -= 1
            raise OSError("HTTP 503")
        self.uploads.put((f"{folder}/{Path(path).name}", Path(path).read_bytes()))

    def set_experiment_tag(self, *tag: str) -> None:
        self.tags.append(tag)
        raise PermissionError


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(log_uploads, "UPLOAD_SECONDS", 0.01)
    return Client()


@pytest.fixture
def chunk(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "rank_0" / "attempt-0-00.chunk.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one\n")
    return path


@pytest.fixture
def uploads(client: Client, tmp_path: Path, request: Any) -> Iterator[LogUploads]:
    info = SimpleNamespace(run_id="r", experiment_id="7")
    uri = getattr(request, "param", "http://mlflow")
    opened: Any = SimpleNamespace(client=client, uri=uri, run=SimpleNamespace(info=info))
    made = LogUploads(opened, tmp_path)
    made.start()
    yield made
    client.goes_on.set()
    made.stop(WAIT_SECONDS)
    assert not made.is_alive()


NAME = "logs/rank_0/attempt-0-00.chunk.txt"


def test_what_has_changed_is_uploaded_and_what_mlflow_has_does_not_go_again(
    client: Client, chunk: Path, uploads: LogUploads
) -> None:
    assert client.uploads.get(timeout=WAIT_SECONDS) == (NAME, b"one\n")
    with chunk.open("ab") as file:
        file.write(b"two\n")
    assert client.uploads.get(timeout=WAIT_SECONDS) == (NAME, b"one\ntwo\n")
    other = chunk.with_name("attempt-0-01.chunk.txt")
    other.write_bytes(b"three\n")
    assert client.uploads.get(timeout=WAIT_SECONDS)[0].endswith("attempt-0-01.chunk.txt")
    uploads.stop(WAIT_SECONDS)
    assert client.uploads.empty()
    assert not chunk.exists()
    assert client.tags == []


def test_what_grew_after_its_upload_stays_for_the_end(
    client: Client, chunk: Path, uploads: LogUploads
) -> None:
    client.uploads.get(timeout=WAIT_SECONDS)
    client.goes_on.clear()
    with chunk.open("ab") as file:
        file.write(b"two\n")
    uploads.stop(0)  # It hangs, or has not seen it.
    assert chunk.read_bytes() == b"one\ntwo\n"


def test_a_server_that_fails_gets_it_later(
    client: Client, chunk: Path, uploads: LogUploads
) -> None:
    client.fails = 3
    assert client.uploads.get(timeout=WAIT_SECONDS) == (NAME, b"one\n")


@pytest.mark.parametrize("uploads", ["databricks"], indirect=True)
def test_on_databricks_the_experiment_is_told_once_and_may_refuse(
    client: Client, chunk: Path, uploads: LogUploads
) -> None:
    client.uploads.get(timeout=WAIT_SECONDS)
    chunk.with_name("attempt-0-01.chunk.txt").touch()
    client.uploads.get(timeout=WAIT_SECONDS)
    assert client.tags == [("7", "air-show-logs", "true")]
