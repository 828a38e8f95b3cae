"""Values that are too large for Spark come home by the channel, or are kept where they are."""

from __future__ import annotations

import os
import pickle
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import fsspec
import pytest

from sparkdl_runner import __version__
from sparkdl_runner.errors import NotPicklableError, RunnerError
from sparkdl_runner.launch.agent import log_client
from sparkdl_runner.launch.agent.large_value import Delivery
from sparkdl_runner.launch.agent.log_client import LogClient
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver import returned_values
from sparkdl_runner.launch.driver.log_server import LogServer
from sparkdl_runner.launch.driver.returned_values import ReturnedValues, value_of
from sparkdl_runner.launch.driver.watch import Watch
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.messages import Message, Stacks, ValuePart, ValueSent
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, World, assign_ranks

HERE = socket.gethostname()
PEER = Peer(
    partition=0, host=HERE, host_key="k", address="127.0.0.1", interface="lo", version=__version__
)
WORLD = assign_ranks([PEER], backend="torch")[0]
# A few parts, and a rest.
VALUE = os.urandom(3 * log_client.PART_BYTES + 1000)
RETURNED = Outcome(
    world=WORLD, status=Status.RETURNED, ended_at=1.0, payload=cloudpickle.dumps(VALUE)
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def files(folder: Path) -> list[Path]:
    return [one for one in folder.rglob("*") if one.is_file()]


class Driver:
    """The driver's end, and an agent's that has its rank."""

    def __init__(self, stack: ExitStack) -> None:
        self.values = ReturnedValues("run")
        stack.callback(self.values.close)
        attempt = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="run")
        self.server = LogServer(
            network.listen("127.0.0.1"),
            host="127.0.0.1",
            num_proc=1,
            receiver=self,
            attempt=attempt,
        )
        self.server.watch = Watch(
            config=RunConfig(),
            backend=get_backend("torch"),
            num_proc=1,
            ask_stacks=dict,
            on_verdict=lambda verdict: None,
        )
        self.server.start()
        stack.callback(self.server.close)
        self.parts = 0
        self.on_part = lambda: None
        nothing: Any = lambda *arguments: None  # noqa: E731
        self.agent = LogClient(
            self.server.channel,
            PEER,
            relay_output=False,
            fence_seconds=600.0,
            on_assignment=nothing,
            on_stop=nothing,
            on_request=nothing,
            on_preempt=nothing,
            on_growth=nothing,
            on_stacks=lambda: Stacks("", []),
        )
        stack.callback(self.agent.close)
        self.agent.place(WORLD)

    def take(self, world: World, message: Message) -> None:
        if isinstance(message, ValuePart):
            self.parts += 1
            self.on_part()
            self.values.take_part(world, message.data, is_first=message.is_first)

    def value_problem(self, world: World, sent: ValueSent) -> str | None:
        return self.values.problem(world, sent)

    def delivered(self, outcome: Outcome = RETURNED, most_bytes: int = 1000) -> Outcome:
        return Delivery(most_bytes, self.agent, "run").deliver(outcome)


@pytest.fixture
def driver() -> Iterator[Driver]:
    with ExitStack() as stack:
        yield Driver(stack)


def test_a_large_value_comes_home_and_leaves_no_file(driver: Driver, folder: Path) -> None:
    sent = driver.delivered()
    assert (sent.status, sent.payload) == (Status.RETURNED, b"")
    (file,) = files(folder)  # The driver's. That of the rank's host is gone.
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (outcome,) = driver.values.with_files([sent])
    assert value_of(outcome, "run") == VALUE
    assert list(folder.rglob("run*")) == []


def test_it_comes_whole_though_the_connection_breaks(driver: Driver) -> None:
    def breaks() -> None:
        if driver.parts == 2:
            driver.server._loop.call_soon_threadsafe(
                lambda: driver.server._agents[0].writer.transport.abort()
            )

    driver.on_part = breaks
    (outcome,) = driver.values.with_files([driver.delivered()])
    assert value_of(outcome, "run") == VALUE


def test_spark_carries_what_it_can(driver: Driver) -> None:
    size = len(RETURNED.payload)
    assert driver.delivered(most_bytes=size) is RETURNED
    assert driver.delivered(replace(RETURNED, status=Status.FAILED)).payload == RETURNED.payload
    shared = replace(RETURNED, of_each=True, world=replace(WORLD, size=2))
    assert driver.delivered(shared, most_bytes=2 * size) is shared
    assert driver.parts == 0
    assert driver.delivered(shared, most_bytes=2 * size - 1).payload == b""


def kept_in(message: str) -> Any:
    found = re.search(r"load it with cloudpickle\.load\(open\('([^']+)', 'rb'\)\)", message)
    assert found is not None, message
    path = Path(found[1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.open("rb") as file:
        return cloudpickle.load(file)


def test_a_driver_without_room_leaves_it_on_the_ranks_host(
    driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(returned_values, "new_value_file", full)
    failed = driver.delivered()
    assert (failed.status, failed.refused_result) == (Status.FAILED, "ResultTooLargeError")
    assert "the driver could not keep it: [Errno 28] No space left on device" in failed.message
    assert f"kept for a week on host {HERE}" in failed.message
    assert kept_in(failed.message) == VALUE
    assert len(files(folder)) == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_what_does_not_come_is_kept_beside_the_checkpoints(folder: Path, is_there: bool) -> None:
    checkpoints = folder / "checkpoints"
    if is_there:
        checkpoints.mkdir()
    place = f"{checkpoints.as_uri()}/step-7/attempt-0"
    failed = Delivery(1000, None, "run").deliver(replace(RETURNED, checkpoint=place))
    if not is_there:
        assert kept_in(failed.message) == VALUE
        return
    url = f"{checkpoints.as_uri()}/returned-run-rank-0.pickle"
    assert f"in {url}: load it with cloudpickle.load(fsspec.open('{url}').open())" in failed.message
    with fsspec.open(url) as file:
        assert cloudpickle.load(file) == VALUE
    (file_there,) = files(folder)  # None is left in the host's own folder.
    assert stat.S_IMODE(file_there.stat().st_mode) == 0o600


def test_a_driver_that_is_gone_leaves_it_on_the_ranks_host() -> None:
    with ExitStack() as stack:
        driver = Driver(stack)

        def go() -> None:
            driver.agent._fence_seconds = 0.5
            driver.server._loop.call_soon_threadsafe(driver.server._stopped.set)

        driver.on_part = go
        failed = driver.delivered()
    assert re.search(r"the driver at 127\.0\.0\.1:\d+ is not heard any more", failed.message)
    assert kept_in(failed.message) == VALUE


def test_it_does_not_go_in_clear_where_encryption_is_asked_for() -> None:
    failed = Delivery(1000, None, "run").deliver(RETURNED)
    assert "takes 787,4" in failed.message
    assert "Spark carries at most 1,000. The channel to the driver is not encrypted" in (
        failed.message
    )
    assert kept_in(failed.message) == VALUE


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nobody_unpickles_what_spark_did_not_vouch_for(driver: Driver, tmp_path: Path) -> None:
    trap = tmp_path / "unpickled"
    value = replace(RETURNED, payload=pickle.dumps([Touches(trap), bytes(2000)]))
    sent = driver.delivered(value)
    (other,) = driver.values.with_files([replace(sent, value_sha256="0" * 64)])
    with pytest.raises(RunnerError, match="its SHA-256 is another one than Spark has carried"):
        value_of(other, "run")
    (elsewhere,) = driver.values.with_files([replace(RETURNED, value_file=str(trap))])
    assert elsewhere.value_file == "", "only the driver says which file it is"
    assert not trap.exists()


@pytest.mark.parametrize("is_large", [False, True])
def test_what_the_driver_cannot_unpickle_is_kept(driver: Driver, is_large: bool) -> None:
    missing = b"cnosuchmodule\nthing\n." + bytes(2000)
    outcome = replace(RETURNED, payload=missing)
    if is_large:
        (outcome,) = driver.values.with_files([driver.delivered(outcome)])
    with pytest.raises(NotPicklableError, match=r"No module named 'nosuchmodule'\)\.") as told:
        value_of(outcome, "run")
    found = re.search(r"in (/\S+\.pickle): load it", str(told.value))
    assert found is not None
    assert Path(found[1]).read_bytes() == missing
    assert told.value.kept == Path(found[1])


def test_parts_that_nobody_takes_are_removed(driver: Driver, folder: Path) -> None:
    sent = driver.delivered()
    failed = [sent, replace(RETURNED, status=Status.FAILED)]
    assert driver.values.with_files(failed) == failed
    driver.values.close()
    assert files(folder) == []


def test_a_value_is_not_taken_before_all_of_it_is_there() -> None:
    values = ReturnedValues("run")
    values.take_part(WORLD, b"abc", is_first=True)
    assert values.problem(WORLD, ValueSent(4, "")) is None
    assert values.problem(WORLD, ValueSent(3, "")) == "what has come is not what was sent"
    values.close()
    assert values.problem(WORLD, ValueSent(3, "")) is None
