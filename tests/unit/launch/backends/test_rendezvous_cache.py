"""Ranks of several hosts meet, each by way of its host's copy of the store."""

from __future__ import annotations

import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparkdl_runner.launch.backends.rendezvous import cache, server
from sparkdl_runner.launch.backends.rendezvous.cache import RendezvousCache
from sparkdl_runner.launch.backends.rendezvous.server import prefix_of
from sparkdl_runner.launch.backends.rendezvous.store import RendezvousStore
from sparkdl_runner.launch.wire import network

SECRET, LOOPBACK = "s3cret", frozenset({"127.0.0.1"})
HOSTS, RANKS_PER_HOST = 3, 4
RANKS = HOSTS * RANKS_PER_HOST


class CountingStore(RendezvousStore):
    asked = 0

    async def handle(self, reader, writer):
        self.asked += 1
        await super().handle(reader, writer)


@pytest.fixture
def told():
    return []


@pytest.fixture
def store(told):
    listener = network.listen("127.0.0.1")
    server = CountingStore(listener, LOOPBACK, num_proc=RANKS, secret=SECRET, tell=told.append)
    server.start()
    yield server
    server.close()


@pytest.fixture
def caches(store, monkeypatch):
    monkeypatch.setattr(cache, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(cache, "FORWARD_SECONDS", 120.0)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 120.0)
    found = [
        RendezvousCache(
            network.listen("127.0.0.1"),
            store.address,
            LOOPBACK,
            num_proc=RANKS_PER_HOST,
            secret=SECRET,
        )
        for _ in range(HOSTS)
    ]
    for one in found:
        one.start()
    yield found
    for one in found:
        one.close()


def ask(server, method, path, body=b""):
    connection = http.client.HTTPConnection(*server.address, timeout=120)
    try:
        connection.request(method, prefix_of(SECRET, server.address[1]) + path, body=body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get(server, path):
    """Asks until the value is there, as Horovod's client does."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        status, value = ask(server, "GET", path)
        if status == 200:
            return value
    raise AssertionError(path)


def meet(server, rank, barrier, turn):
    """Writes this rank's value and reads all others', as gloo does; returns what was read."""
    for key in (f"rank_{rank}", str(rank)):
        assert ask(server, "PUT", f"/global/{key}", f"{turn}: {key}".encode() * 50)[0] == 200
    found = [get(server, f"/global/{other}") for other in range(RANKS)]
    barrier.wait(120)
    assert ask(server, "DELETE", f"/global/{rank}")[0] == 200
    return found


def test_ranks_meet_again_and_again_and_the_store_is_asked_by_hosts(store, caches):
    barrier = threading.Barrier(RANKS)
    turns = 3

    def rank(number):
        return [
            meet(caches[number // RANKS_PER_HOST], number, barrier, turn) for turn in range(turns)
        ]

    with ThreadPoolExecutor(RANKS) as pool:
        found = list(pool.map(rank, range(RANKS)))
    expected = [[f"{turn}: {one}".encode() * 50 for one in range(RANKS)] for turn in range(turns)]
    assert found == [expected] * RANKS
    # Two values of each rank and its farewell; and each host follows, once more where one of its
    # ranks is late to leave. Without copies, reading alone takes RANKS squared.
    assert store.asked <= turns * (3 * RANKS + HOSTS * RANKS_PER_HOST) < turns * (3 + RANKS) * RANKS


def test_a_refusal_reaches_the_rank_through_the_copy(store, caches, told):
    assert ask(caches[0], "PUT", "/a/1", b"x")[0] == 200
    assert ask(caches[1], "PUT", "/a/1", b"y")[0] == 409
    assert "was tampered with" in told[0]
    assert ask(caches[0], "GET", "/a/2") == (404, b"")


def test_a_copy_whose_store_is_gone_answers_nothing(store, caches):
    store.close()
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(caches[0], "PUT", "/a/1", b"x")
    assert ask(caches[0], "GET", "/a/1")[0] == 404


def test_no_stranger_reads_a_copy(store, caches):
    ask(caches[0], "PUT", "/a/1", b"x")
    connection = http.client.HTTPConnection(*caches[0].address, timeout=120)
    connection.request("GET", prefix_of("guess!", caches[0].address[1]) + "/a/1")
    with pytest.raises(http.client.HTTPException):
        connection.getresponse()
    connection.close()
