"""Ranks on a server that does not reach this client: what they say comes by a relay."""

from __future__ import annotations

import socket
import time
from concurrent.futures import CancelledError

import pytest
from connect_server import ConnectServer, started
from walled_off import door, namespace

from namespaces import why_not
from sparkdl_runner import DistributedRunner, RunConfig, WorkerDiedError

pytestmark = pytest.mark.integration
PORT = 15002


def speaks(port: int) -> bool:
    """Whether there is somebody behind the door: a server of HTTP/2 speaks first."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return connection.recv(1) != b""


@pytest.fixture(scope="module")
def walled_off(tmp_path_factory: pytest.TempPathFactory, bare: str):
    """A server that reaches nobody, and its door."""
    if reason := why_not():
        pytest.skip(reason)
    own = [f"spark.driver.{one}=127.0.0.1" for one in ("host", "bindAddress")]
    folder = tmp_path_factory.mktemp("walled-off")
    with (
        namespace() as name,
        door(name, PORT) as port,
        started(folder, bare, *own, port=PORT, inside=name) as server,
    ):
        (server.modules / "torch.py").write_text("raise ImportError('these ranks do without')")
        server.port = port
        server.wait_until(lambda: speaks(port), "server that listens")
        yield server


@pytest.fixture
def session(walled_off: ConnectServer, connect_mode: None, monkeypatch: pytest.MonkeyPatch):
    """This thread's session; the process may have another one."""
    from pyspark.sql.connect.session import SparkSession

    made = SparkSession.builder.remote(walled_off.url).create()
    monkeypatch.setattr(SparkSession._active_session, "session", made)
    yield made
    made.stop()


def wait_here(*, is_killed: bool) -> None:
    """Says that it is there, and goes on until it is ended."""
    import os
    import signal
    import time

    from sparkdl_runner import current_world

    print("I am there", flush=True)
    if is_killed and current_world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def test_ranks_are_heard_while_they_run_and_told_to_end(session, capfd):
    config = RunConfig(require_collectives=False)
    runner = DistributedRunner(num_proc=2, backend="horovod", run_config=config)
    shown = ""
    run = runner.submit(wait_here, is_killed=False)
    while not all(f"[rank {rank}] I am there" in shown for rank in (0, 1)):
        assert not run.done()
        time.sleep(0.05)
        shown += "".join(capfd.readouterr())
    run.cancel()
    with pytest.raises(CancelledError):
        run.result()
    assert "what the ranks say comes by a relay beside the server's driver" in shown
    with pytest.raises(WorkerDiedError, match=r"Rank 1 of 2 .* was ended by SIGKILL"):
        runner.run(wait_here, is_killed=True)
