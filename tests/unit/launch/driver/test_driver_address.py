"""Where the driver listens for its agents, with each way to configure a driver's address."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.spark.context import listen_on_driver
from sparkdl_runner.launch.wire import network


def listen(master, *, executors=(), **settings):
    infos = [SimpleNamespace(host=lambda name=name: name) for name in executors]
    tracker = SimpleNamespace(getExecutorInfos=lambda: infos)
    scala_context = SimpleNamespace(statusTracker=lambda: tracker)
    configuration = {f"spark.driver.{name}": value for name, value in settings.items()}
    context = SimpleNamespace(
        master=master,
        _conf=configuration,
        _jsc=SimpleNamespace(sc=lambda: scala_context),
    )
    listener, host = listen_on_driver(context)
    with listener:
        return listener.getsockname()[0], host


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"host": "127.0.0.1"}, ("127.0.0.1", "127.0.0.1")),
        ({"host": "[::1]"}, ("::1", "::1")),
        ({"host": "127.0.0.1", "bindAddress": "0.0.0.0"}, ("127.0.0.1", "127.0.0.1")),
        ({"host": "::1", "bindAddress": "[::]"}, ("::1", "::1")),
        # Address translation: executors know an address that the driver does not have.
        ({"host": "192.0.2.9", "bindAddress": "127.0.0.1"}, ("127.0.0.1", "192.0.2.9")),
    ],
)
def test_the_driver_listens_on_the_address_that_executors_use(settings, expected):
    assert listen("spark://host:7077", **settings) == expected


def test_a_driver_whose_name_leads_to_loopback_listens_where_executors_reach_it():
    own = network.source_address("192.0.2.1")
    if network.is_loopback(own):
        pytest.skip("this machine has no network")
    executors = ["localhost", "192.0.2.7"]
    for bound in ("0.0.0.0", "127.0.0.1", "localhost"):
        settings = {"host": "localhost", "bindAddress": bound}
        found = listen("spark://host:7077", executors=executors, **settings)
        assert found == (own, own)
    # Address translation, where Spark itself listens everywhere.
    settings = {"host": "198.51.100.1", "bindAddress": "0.0.0.0"}
    assert listen("spark://h:1", executors=executors, **settings) == (own, "198.51.100.1")


def test_with_a_local_master_nothing_leaves_the_loopback_interface():
    assert listen("local[2]", host="192.0.2.9") == ("127.0.0.1", "127.0.0.1")


def test_an_address_of_another_host_is_refused_with_the_setting():
    with pytest.raises(LaunchError, match=r"cannot listen on 192\.0\.2\.9 .*spark\.driver\.bind"):
        listen("spark://host:7077", host="192.0.2.9")
