"""Metrics and files arrive once, however often the connection between agent and driver breaks."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_log_channel import PEERS, WORLDS, Recorder, client_of, server_of

from sparkdl_runner.launch.agent.outbox import Outbox
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.channel import ChannelAddress
from sparkdl_runner.launch.wire.frames import NONCE_BYTES, FrameCodec, receive_frame
from sparkdl_runner.launch.wire.message_json import decode, encode
from sparkdl_runner.launch.wire.messages import (
    REFUSED,
    Confirmed,
    Ended,
    Hello,
    Logged,
    LogPart,
    Ping,
    Placed,
    Progress,
)

KEY = bytes(range(32))


def report(step):
    return {"entries": [["metric", "loss", 1.0, 0, step, {}]], "problems": []}


def receive_next(connection, codec, kind):
    while True:  # Signs of life come in between, one a second.
        values, payload = receive_frame(connection, codec)
        if values["kind"] == kind.__name__:
            return decode(values, payload, {kind.__name__: kind})


class Driver:
    """The driver's end, message by message."""

    def __init__(self):
        self.listener = network.listen("127.0.0.1")
        port = self.listener.getsockname()[1]
        self.channel = ChannelAddress(host="127.0.0.1", port=port, key=KEY)

    def accept(self):
        connection, _ = self.listener.accept()
        connection.settimeout(120)
        nonce = bytes(NONCE_BYTES)
        outgoing = FrameCodec(KEY, nonce, b"driver")
        connection.sendall(nonce + outgoing.seal(*encode(Ping())))
        return connection, FrameCodec(KEY, nonce, b"agent"), outgoing


@pytest.fixture
def driver():
    driver = Driver()
    yield driver
    driver.listener.close()


def test_what_a_broken_connection_carried_is_sent_again_until_it_is_confirmed(driver):
    client = client_of(None, channel=driver.channel)
    first, incoming, outgoing = driver.accept()
    for step in (1, 2, 3):
        client.take(WORLDS[0], Progress.of(report(step)))
    sent = [receive_next(first, incoming, Logged) for _ in range(3)]
    assert [json.loads(one.report) for one in sent] == [report(step) for step in (1, 2, 3)]
    assert [one.number for one in sent] == [1, 2, 3]
    # It takes the first, and then the connection breaks: nobody knows what became of the others.
    first.sendall(outgoing.seal(*encode(Confirmed(sent[0].number))))
    while len(client._outbox._unconfirmed) == 3:
        receive_frame(first, incoming)  # An agent says something every second.
    first.close()
    second, incoming, outgoing = driver.accept()
    again = [receive_next(second, incoming, Logged) for _ in range(2)]
    assert again == sent[1:]
    second.sendall(outgoing.seal(*encode(Confirmed(again[-1].number))))
    with ThreadPoolExecutor(1) as threads:
        notes = threads.submit(client.notes, WORLDS[0])
        receive_next(second, incoming, Ended)
        second.close()
    assert notes.result() == ()


def test_what_arrives_again_is_confirmed_again_and_counts_once():
    recorder = Recorder()
    server = server_of(recorder)
    server.start()
    # The confirmation of 2 was lost with the first connection; then it goes on with 3.
    for numbers in ((1, 2), (2, 3)):
        with socket.create_connection(server.address, timeout=120) as agent:
            nonce = agent.recv(NONCE_BYTES, socket.MSG_WAITALL)
            outgoing = FrameCodec(server.channel.key, nonce, b"agent")
            incoming = FrameCodec(server.channel.key, nonce, b"driver")
            agent.sendall(outgoing.seal(*encode(Hello(PEERS[0]))))
            agent.sendall(outgoing.seal(*encode(Placed(WORLDS[0]))))
            for number in numbers:
                logged = Progress.of(report(number))
                logged.number = number
                agent.sendall(outgoing.seal(*encode(logged)))
                assert receive_next(agent, incoming, Confirmed).number == number
    server.close()
    assert [entries[0][4] for _, _, entries in recorder.heard] == [1, 2, 3]


def test_a_part_of_a_growing_log_that_is_refused_says_so_and_is_not_counted_as_lost():
    outbox = Outbox()
    parts = [LogPart("logs/rank_0", b"x", False) for _ in range(LogPart.most_waiting + 1)]
    for part in parts:
        outbox.put(part)
    assert [part.number for part in parts] == [*range(1, len(parts)), REFUSED]
    outbox.confirm(len(parts))
    assert outbox.lost_reports == 0
    parts[-1] = LogPart("logs/rank_0", b"x", False)
    outbox.put(parts[-1])
    assert parts[-1].number == len(parts)
