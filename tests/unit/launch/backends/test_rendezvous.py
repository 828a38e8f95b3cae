from __future__ import annotations

import contextlib
import http.client
import pickle
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ports import reusable_port
from sparkdl_runner.launch.backends import Rendezvous
from sparkdl_runner.launch.backends.horovod_backend import address_for_ranks
from sparkdl_runner.launch.backends.rendezvous import server
from sparkdl_runner.launch.backends.rendezvous import store as rendezvous
from sparkdl_runner.launch.backends.rendezvous.server import parse_request
from sparkdl_runner.launch.backends.rendezvous.store import RendezvousStore
from sparkdl_runner.launch.wire import network

SECRET = "s3cret"


def store_for(peers, told, ports=None):
    listener = network.listen("127.0.0.1", ports)
    return RendezvousStore(listener, frozenset(peers), num_proc=2, secret=SECRET, tell=told.append)


@pytest.fixture
def told():
    return []


@pytest.fixture(autouse=True)
def _is_patient(monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 120.0)


@pytest.fixture
def store(told, monkeypatch):
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.05)
    server = store_for({"127.0.0.1"}, told)
    server.start()
    yield server
    server.close()


def ask(store, method, path, body=b"", secret=SECRET):
    """Asks as Horovod's client does, which puts its URL together without looking at the parts."""
    host, port = store.address
    url = f"http://{address_for_ranks(host, port, secret)}:{port}{path}"
    connection = http.client.HTTPConnection(*store.address, timeout=120)
    try:
        connection.request(method, url.removeprefix(f"http://{host}:{port}"), body=body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_who_asks_too_early_is_answered_when_the_value_comes(store, monkeypatch):
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 600.0)
    read, waiting = store._read, threading.Semaphore(0)

    def note(scope, key):
        waiting.release()
        return read(scope, key)

    monkeypatch.setattr(store, "_read", note)
    with ThreadPoolExecutor(2) as pool:
        early = [pool.submit(ask, store, "GET", f"/global/{key}") for key in (0, 1)]
        for _ in early:
            assert waiting.acquire(timeout=120)
        assert ask(store, "PUT", "/global/1", b"one") == (200, b"")
        assert early[1].result(120) == (200, b"one")
        assert not early[0].done()
        assert ask(store, "PUT", "/global/0", b"zero") == (200, b"")
        assert early[0].result(120) == (200, b"zero")


def test_a_value_is_there_once_it_was_put(store):
    assert ask(store, "GET", "/global/0") == (404, b"")
    assert ask(store, "PUT", "/global/0", b"\x00\xffraw") == (200, b"")
    assert ask(store, "GET", "/global/0") == (200, b"\x00\xffraw")
    assert ask(store, "GET", "/local_host0/0") == (404, b"")
    assert ask(store, "DELETE", "/global/0") == (200, b"")


def test_a_backend_of_somebodys_own_knows_the_stores_url(store):
    address, port = store.address
    facts = {"secret": SECRET, "peers": frozenset({address}), "num_proc": 2}
    url = Rendezvous(address=address, port=port, attempt=None, **facts).url
    put = urllib.request.Request(f"{url}/sums/0", b"4.5", method="PUT")
    urllib.request.urlopen(put, timeout=120).close()
    assert ask(store, "GET", "/sums/0") == (200, b"4.5")


def meet(store, scope, *ranks, value=b"address"):
    for rank in ranks:
        for key in (f"rank_{rank}", str(rank)):
            assert ask(store, "PUT", f"/{scope}/{key}", value) == (200, b"")


def test_a_meeting_is_over_once_a_rank_has_passed_its_barrier(store):
    meet(store, "global", 0, 1)
    ask(store, "DELETE", "/global/1")
    for key in ("0", "1", "rank_0", "rank_1"):
        assert ask(store, "GET", f"/global/{key}")[0] == 404


def test_a_rank_that_is_slow_to_leave_a_meeting_does_not_end_the_next(store):
    meet(store, "global", 0, 1, 2)
    ask(store, "DELETE", "/global/0")
    meet(store, "global", 0, value=b"new")  # Rank 0 is back before the others have left.
    ask(store, "DELETE", "/global/2")
    ask(store, "DELETE", "/global/1")
    meet(store, "global", 1, 2, value=b"new")
    assert [ask(store, "GET", f"/global/{rank}")[1] for rank in range(3)] == [b"new"] * 3
    ask(store, "DELETE", "/global/1")
    assert ask(store, "GET", "/global/0")[0] == 404


def test_a_meeting_says_nothing_on_another(store):
    meet(store, "global", 0, 1)
    meet(store, "local_host0", 0)
    ask(store, "DELETE", "/local_host0/0")
    assert ask(store, "GET", "/global/0")[0] == 200
    # A word that is said twice, since its answer was lost, and one of a rank that was never there.
    ask(store, "DELETE", "/local_host0/0")
    ask(store, "DELETE", "/global/7")
    assert ask(store, "GET", "/global/1")[0] == 200


def test_meetings_that_are_over_leave_nothing(store, monkeypatch):
    monkeypatch.setattr(store, "_most_bytes", 100)
    monkeypatch.setattr(rendezvous, "MAX_KEYS", 4)
    for _ in range(3):
        meet(store, "global", 0, 1, value=b"x" * 25)
        for rank in range(2):
            ask(store, "DELETE", f"/global/{rank}")
    meet(store, "cross_0", 0, 1, value=b"x" * 25)
    assert ask(store, "PUT", "/global/0", b"")[0] == 507


def test_values_are_not_unpickled(store):
    class Explosive:
        def __reduce__(self):
            return (print, ("unpickled",))

    assert ask(store, "PUT", "/a/b", pickle.dumps(Explosive()))[0] == 200
    assert ask(store, "GET", "/a/b")[1] == pickle.dumps(Explosive())


def test_it_listens_on_its_own_address_only(store):
    assert store.address[0] == "127.0.0.1"


def test_strangers_are_not_served(told):
    server = store_for({"192.0.2.7"}, told)
    server.start()
    with (
        contextlib.closing(server),
        pytest.raises((http.client.HTTPException, ConnectionError)),
    ):
        ask(server, "GET", "/global/0")


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
@pytest.mark.parametrize("secret", ["", "wrong", SECRET[:-1], SECRET + "x"])
def test_who_does_not_know_the_secret_is_not_served(store, method, secret):
    ask(store, "PUT", "/global/0", b"mine")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(store, method, "/global/0", b"theirs", secret=secret)
    assert ask(store, "GET", "/global/0") == (200, b"mine")


def test_a_key_is_written_once(store, told):
    assert ask(store, "PUT", "/global/0", b"mine")[0] == 200
    assert ask(store, "PUT", "/global/0", b"mine")[0] == 200  # The answer was lost, perhaps.
    assert told == []
    assert ask(store, "PUT", "/global/0", b"theirs")[0] == 409
    assert ask(store, "GET", "/global/0") == (200, b"mine")
    assert "tampered with" in told[0]


def test_a_value_that_is_too_large_is_refused(store, monkeypatch):
    monkeypatch.setattr(server, "MAX_VALUE_BYTES", 10)
    assert ask(store, "PUT", "/a/b", b"x" * 11)[0] == 413
    assert ask(store, "PUT", "/a/b", b"x" * 10)[0] == 200


def test_a_full_store_refuses_new_values_in_words_and_serves_old_ones(store, told, monkeypatch):
    monkeypatch.setattr(store, "_most_bytes", 10)
    assert ask(store, "PUT", "/a/1", b"x" * 10)[0] == 200
    assert ask(store, "PUT", "/a/2", b"x")[0] == 507
    assert "rendezvous is full: 2 ranks have 10 bytes" in told[0]
    assert "the torch backend" in told[0]
    assert ask(store, "GET", "/a/1") == (200, b"x" * 10)


def test_the_number_of_keys_is_bounded(store, monkeypatch):
    monkeypatch.setattr(rendezvous, "MAX_KEYS", 1)
    assert ask(store, "PUT", "/a/1", b"x")[0] == 200
    assert ask(store, "PUT", "/a/2", b"x")[0] == 507
    assert ask(store, "PUT", "/a/1", b"x")[0] == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\xff\xfe\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_nonsense_ends_its_connection_and_nothing_else(store, raw):
    with socket.create_connection(store.address, timeout=120) as connection:
        connection.sendall(raw)
        assert connection.recv(1024) == b""
    assert ask(store, "PUT", "/still", b"there")[0] == 200


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_value_error(raw):
    try:
        method, path, length = parse_request(raw + b"\r\n\r\n")
    except ValueError:
        return
    assert method is not None
    assert path.startswith("/")
    assert length >= 0


def test_closing_ends_open_connections_and_frees_the_port(told):
    port = reusable_port()
    store = store_for({"127.0.0.1"}, told, (port, port))
    store.start()
    with socket.create_connection(store.address, timeout=120) as connection:
        address = store.address
        store.close()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=120)
