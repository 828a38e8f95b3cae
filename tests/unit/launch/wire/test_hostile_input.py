"""A hundred thousand messages that nobody of the run has made: none is taken, and nothing breaks.

The parsers are fed by themselves, so that there can be so many; then some come over real sockets,
beside a rank that must not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket

import pytest
import test_log_channel
from test_log_channel import PEERS, WORLDS, Recorder, client_of, server_of

from sparkdl_runner.launch.backends.rendezvous import server as rendezvous_server
from sparkdl_runner.launch.backends.rendezvous.server import parse_request
from sparkdl_runner.launch.backends.rendezvous.store import RendezvousStore
from sparkdl_runner.launch.driver import log_server
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.frames import LENGTH, NONCE_BYTES, FrameCodec, read_frame
from sparkdl_runner.launch.wire.message_json import encode
from sparkdl_runner.launch.wire.messages import Hello, Placed, Stop, Text

FRAMES = 50_000
REQUESTS = 50_000
PATIENCE_SECONDS = 120.0


def mutate(dice: random.Random, content: bytes) -> bytes:
    """Cuts, doubles, flips, mixes in noise, or lies about the length."""
    data = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        choice = dice.randrange(5)
        if choice == 0:
            del data[at:]
        elif choice == 1:
            data[at:at] = data[: dice.randrange(64)]
        elif choice == 2 and data:
            data[at % len(data)] ^= 1 << dice.randrange(8)
        elif choice == 3:
            data[at:at] = dice.randbytes(dice.randrange(16))
        else:
            data[:4] = dice.randbytes(4)
    return bytes(data)


def test_no_frame_but_a_sealed_one_is_taken():
    key, nonce = bytes(range(32)), bytes(NONCE_BYTES)
    messages = [encode(one) for one in (Placed(WORLDS[0]), Stop(), Text("text"))]
    good = [FrameCodec(key, nonce, b"agent").seal(*message) for message in messages]
    dice = random.Random(0)

    async def feed() -> int:
        taken = 0
        for _ in range(FRAMES):
            frame = mutate(dice, dice.choice(good))
            if frame in good:
                continue
            reader = asyncio.StreamReader()
            reader.feed_data(frame)
            reader.feed_eof()
            with contextlib.suppress(ValueError, EOFError):
                message = await read_frame(reader, FrameCodec(key, nonce, b"agent"))
                # What follows a whole frame is the next frame's affair.
                taken += message not in messages
        return taken

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asyncio.run(feed()) == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def test_no_request_makes_the_parser_fail_in_another_way_than_its_own():
    good = [
        b"PUT /global/rank_0 HTTP/1.1\r\nContent-Length: 5\r\nHost: h\r\n\r\n",
        b"GET /local_host0/1 HTTP/1.1\r\nAccept: */*\r\n\r\n",
        b"DELETE /cross_0/1 HTTP/1.0\r\n\r\n",
    ]
    dice = random.Random(1)
    for _ in range(REQUESTS):
        head = mutate(dice, dice.choice(good))
        with contextlib.suppress(ValueError):
            method, path, length = parse_request(head)
            assert path.startswith("/")
            assert length >= 0
            assert isinstance(method, str)


@pytest.fixture
def recorder():
    return Recorder()


def test_a_healthy_rank_notices_nothing_of_strangers(recorder):
    server = server_of(recorder)
    server.start()
    dice = random.Random(2)
    client = client_of(server)
    # Were strangers faster, they could be as many as the server takes connections.
    assert client.is_connected
    sealed = FrameCodec(dice.randbytes(32), bytes(NONCE_BYTES), b"agent").seal(
        *encode(Hello(PEERS[0]))
    )
    for number in range(300):
        with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as stranger:
            stranger.sendall(mutate(dice, sealed) if number % 3 else LENGTH.pack(0xFFFFFFF))
        if number % 30 == 0:
            client.take(WORLDS[0], Text(f"message {number}"))
    client.close()
    server.flush(PATIENCE_SECONDS)
    server.close()
    assert [text for _, _, text in recorder.heard] == [f"message {n}" for n in range(0, 300, 30)]
    assert test_log_channel.WORLDS[0].rank == 0


def test_a_stranger_cannot_have_more_kept_than_a_hello_takes(recorder, monkeypatch):
    monkeypatch.setattr(log_server, "HELLO_SECONDS", 2 * PATIENCE_SECONDS)
    server = server_of(recorder)
    server.start()
    with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as stranger:
        assert len(stranger.recv(NONCE_BYTES, socket.MSG_WAITALL)) == NONCE_BYTES
        stranger.sendall(LENGTH.pack(100_000))  # Less than a frame may have.
        assert stranger.recv(1) == b""  # Long before the time for a hello is over.
    server.close()


def test_a_store_outlives_strangers_and_keeps_its_bounds(monkeypatch):
    from sparkdl_runner.launch.backends.rendezvous import store as rendezvous_store

    monkeypatch.setattr(rendezvous_store, "MAX_STORE_BYTES", 10_000)
    monkeypatch.setattr(rendezvous_server, "REQUEST_SECONDS", PATIENCE_SECONDS)
    store = RendezvousStore(
        network.listen("127.0.0.1"),
        frozenset({"127.0.0.1"}),
        num_proc=2,
        secret="s3cret",
        tell=lambda _: None,
    )
    store.start()
    dice = random.Random(3)
    own = f"/s3cret:{store.address[1]}"
    good = f"PUT {own}/scope/key HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd".encode()
    for _ in range(300):
        with socket.create_connection(store.address, timeout=PATIENCE_SECONDS) as stranger:
            stranger.sendall(mutate(dice, good))
    for number in range(50):
        with socket.create_connection(store.address, timeout=PATIENCE_SECONDS) as peer:
            head = f"PUT {own}/big/{number} HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"
            peer.sendall(head.encode() + bytes(1000))
            peer.recv(100)
    assert store._size_bytes <= 10_000
    with socket.create_connection(store.address, timeout=PATIENCE_SECONDS) as peer:
        peer.sendall(f"GET {own}/big/0 HTTP/1.1\r\n\r\n".encode())
        assert peer.recv(100).startswith(b"HTTP/1.1 200 OK")
    store.close()
