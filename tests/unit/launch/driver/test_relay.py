"""A relay carries all bytes, each once, and ends when its client asks nothing."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import socket
import time
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl_runner.launch.driver.connect import relay, relay_call
from sparkdl_runner.launch.driver.connect.relay import Link

SOURCE = inspect.getsource(relay)
NOTHING = {"links": {}, "wait_seconds": 0, "over": False}
OVER = {**NOTHING, "over": True}


async def link_and_peer(moved: asyncio.Event) -> tuple[Link, socket.socket, asyncio.Task]:
    ours, peer = socket.socketpair()
    peer.setblocking(False)
    link = Link(*await asyncio.open_connection(sock=ours), moved)
    return link, peer, asyncio.create_task(link.fill())


async def carried(agents: bytes, drivers: bytes, seed: int) -> tuple[bytes, bytes]:
    """What each side has got, where tellings are lost, repeated, and overtaken by later ones."""
    chance = random.Random(seed)
    moved = asyncio.Event()
    loop = asyncio.get_running_loop()
    near, agent, filling = await link_and_peer(moved)
    far, driver, other_filling = await link_and_peer(moved)
    got: dict[socket.socket, bytearray] = {agent: bytearray(), driver: bytearray()}

    async def speak(peer: socket.socket, words: bytes) -> None:
        while words:
            some = chance.randint(1, 1 + len(words))
            await loop.sock_sendall(peer, words[:some])
            words = words[some:]
        peer.shutdown(socket.SHUT_WR)

    async def hear(peer: socket.socket) -> None:
        with suppress(ConnectionError):
            while some := await loop.sock_recv(peer, 1 << 16):
                got[peer] += some

    ways = {near: (far, [far.told()]), far: (near, [near.told()])}
    async with asyncio.TaskGroup() as group:
        for peer, words in ((agent, agents), (driver, drivers)):
            group.create_task(speak(peer, words))
            group.create_task(hear(peer))
        while not (near.is_over and far.is_over):
            for taker, (teller, tellings) in ways.items():
                tellings.append(teller.told())
                if chance.random() < 0.7:
                    taker.take(chance.choice(tellings[-3:]))
            await asyncio.sleep(0)
    await asyncio.gather(filling, other_filling)
    for peer in got:
        peer.close()
    return bytes(got[driver]), bytes(got[agent])


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=5000), st.binary(max_size=5000), st.integers(0, 2**32))
def test_bytes_arrive_whole_and_once_whatever_is_lost_or_repeated(agents, drivers, seed):
    assert asyncio.run(carried(agents, drivers, seed)) == (agents, drivers)


@pytest.fixture
def one():
    """A relay: its address and place of questions."""
    host, port, place = json.loads(relay_call.start(SOURCE, "127.0.0.1", [0, 0]))
    yield (host, port), place
    with suppress(OSError):
        relay_call.ask(place, json.dumps(OVER))


def ask(place: str, question: dict) -> dict:
    return json.loads(relay_call.ask(place, json.dumps(question)))["links"]


def wait_until_gone(folder: Path) -> None:
    """Waits until a relay that ends has left nothing."""
    while folder.exists():
        time.sleep(0.01)


def heard(place: str, name: str, size: int) -> dict:
    """What it tells of a link, once that has so many bytes."""
    while len(b64decode((told := ask(place, NOTHING).get(name, {"bytes": ""}))["bytes"])) < size:
        pass
    return told


def test_a_relay_carries_both_ways_and_leaves_nothing(one):
    address, place = one
    with socket.create_connection(address) as agent:
        agent.sendall(b"hello")
        told = heard(place, "1", 5)
        assert told == {"at": 0, "bytes": b64encode(b"hello").decode(), "taken": 0, "ended": False}
        answer = {"at": 0, "bytes": b64encode(b"welcome").decode(), "taken": 5, "ended": True}
        ask(place, {**NOTHING, "links": {"1": answer}})
        assert agent.recv(100, socket.MSG_WAITALL) == b"welcome", "and then the end"
    while ask(place, NOTHING):  # Both have closed, and each has all.
        pass
    assert os.stat(Path(place).parent).st_mode & 0o77 == 0
    relay_call.ask(place, json.dumps(OVER))
    wait_until_gone(Path(place).parent)


def test_a_question_waits_until_something_comes_or_it_is_over(one):
    address, place = one
    patient = {**NOTHING, "wait_seconds": 600}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, place, patient)
        with socket.create_connection(address) as agent:
            assert list(waiting.result()) == ["1"], "the driver speaks first"
            waiting = pool.submit(ask, place, patient)
            agent.sendall(b"hello")
            while b64decode(waiting.result().get("1", {"bytes": ""})["bytes"]) != b"hello":
                waiting = pool.submit(ask, place, patient)
        waiting = pool.submit(ask, place, patient)
        relay_call.ask(place, json.dumps(OVER))
        waiting.result()


def test_a_relay_that_nobody_asks_ends():
    hurried = SOURCE.replace("SILENCE_SECONDS = 10.0", "SILENCE_SECONDS = 0.1")
    assert hurried != SOURCE
    (host, port, place) = json.loads(relay_call.start(hurried, "127.0.0.1", [0, 0]))
    with socket.create_connection((host, port)) as agent:
        assert agent.recv(1) == b"", "its connections are closed"
    wait_until_gone(Path(place).parent)


def test_a_port_range_is_kept_to(one):
    (_, taken), _ = one
    with pytest.raises(OSError, match=f"no port of {taken} to {taken} is free at 127.0.0.1"):
        relay_call.start(SOURCE, "127.0.0.1", [taken, taken])
