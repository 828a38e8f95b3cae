"""One Spark Connect server for all tests, and sessions of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path

import pytest
from connect_server import ConnectServer, bare_python, started, use, wait_for

from sparkdl_runner.launch.driver.connect import probe

# pip's pyspark 3.5 comes without a server.
HAS_SERVER = not metadata.version("pyspark").startswith("3.")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that lacks this package."""
    if not HAS_SERVER:
        pytest.skip("pip's pyspark 3.5 has no Spark Connect server: the modern lane has one")
    return bare_python(tmp_path_factory.mktemp("bare-python"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, bare: str) -> Iterator[ConnectServer]:
    """A server on this host, whose executors lack this package."""
    with started(tmp_path_factory.mktemp("connect-server"), bare) as running:
        yield running


@pytest.fixture
def connect_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of Spark Connect, as pyspark's builder makes it."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")


@pytest.fixture
def new_session(server: ConnectServer, connect_mode: None) -> Iterator[Callable[[str], object]]:
    """Makes further sessions, the last one this thread's; gets what follows the server's URL."""
    from pyspark.sql.connect.session import SparkSession

    made = []

    def make(parameters: str = "") -> SparkSession:
        made.append(SparkSession.builder.remote(server.url + parameters).create())
        use(made[-1])
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(scope="session")
def lasting_session(server: ConnectServer):
    """The session that most tests share: what the probe has found holds for all of them."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(server.url).create()
    yield session
    session.stop()


@pytest.fixture
def session(lasting_session, connect_mode: None):
    """The session of this process."""
    use(lasting_session)
    return lasting_session


@pytest.fixture
def light_ranks(server: ConnectServer) -> Iterator[None]:
    """Ranks do without torch: to import it takes most of the time of a rank that ends soon."""
    hidden = server.modules / "torch.py"
    hidden.write_text("raise ImportError('these ranks are to do without torch')\n")
    yield
    hidden.unlink()


@pytest.fixture
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors do not reach this client."""
    monkeypatch.setattr(probe, "_own_addresses", lambda session, config: [])
    monkeypatch.setattr(probe, "_known", type(probe._known)())


@pytest.fixture(params=["reached", "headless"])
def way(request: pytest.FixtureRequest) -> str:
    """Executors reach this client, and then do not."""
    if request.param == "headless":
        request.getfixturevalue("headless")
    return request.param


@pytest.fixture
def busy(
    server: ConnectServer, tmp_path: Path
) -> Callable[[int], AbstractContextManager[Callable[[], None]]]:
    """Holds slots by a query of another session, until that is left or what it gives is called."""

    @contextmanager
    def hold(slots: int) -> Iterator[Callable[[], None]]:
        from pyspark.sql.connect.session import SparkSession

        may_end = tmp_path / "may-end"

        def occupy(batches):
            import pathlib
            import time

            for _ in batches:
                pass
            pathlib.Path(may_end).with_name(f"began-{time.monotonic_ns()}").touch()
            while not may_end.exists():
                time.sleep(0.05)
            yield from ()

        other = SparkSession.builder.remote(server.url).create()
        query = other.range(0, slots, 1, slots).mapInArrow(occupy, "id long")
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(query.collect)
            try:
                wait_for(lambda: len(list(tmp_path.glob("began-*"))) == slots or held.done())
                yield may_end.touch
            finally:
                may_end.touch()
            held.result()
        other.stop()

    return hold
