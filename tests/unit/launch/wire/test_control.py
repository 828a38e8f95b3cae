from __future__ import annotations

import os
import resource
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl_runner.launch.wire.control import Envelope, WorkerPipe
from sparkdl_runner.rank.world import Peer, assign_ranks


@pytest.fixture
def lines():
    one, two = (WorkerPipe(end) for end in socket.socketpair())
    yield one, two
    one.close()
    two.close()


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.dictionaries(st.text(), st.text() | st.integers()), st.binary()), max_size=5
    )
)
def test_messages_arrive_as_they_were_sent(messages):
    one, two = (WorkerPipe(end) for end in socket.socketpair())
    for message, payload in messages:
        one.send_values(message, payload)
    assert [two.receive() for _ in messages] == messages
    one.close()
    two.close()


def test_messages_of_several_threads_do_not_mix(lines):
    one, two = lines
    payload = bytes(300_000)
    threads = [
        threading.Thread(target=one.send_values, args=({"from": number}, payload))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    received = [two.receive() for _ in threads]
    for thread in threads:
        thread.join()
    assert sorted(message["from"] for message, _ in received) == list(range(8))
    assert all(data == payload for _, data in received)


def test_the_other_end_gone_is_eof(lines):
    one, two = lines
    one.close()
    with pytest.raises(EOFError):
        two.receive()


def test_this_end_closed_is_eof_for_who_waits_and_for_who_comes_later(lines):
    _, two = lines
    ended = []

    def receive():
        with pytest.raises(EOFError):
            two.receive()
        with pytest.raises(EOFError):
            two.receive()
        ended.append(True)

    thread = threading.Thread(target=receive)
    thread.start()
    two.close()
    thread.join()
    assert ended


def test_an_envelope_arrives_whole(lines):
    one, two = lines
    peer = Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")
    envelope = Envelope(
        world=assign_ranks([peer], backend="torch")[0],
        environment={"RANK": "0", "UMLAUT": "ü"},
        search_path=["/a", "/b"],
        function=b"\x00\xff",
    )
    envelope.send(one)
    assert Envelope.receive(two) == envelope


def test_a_socket_arrives_with_its_envelope_and_is_not_inherited_further(lines):
    one, two = lines
    peer = Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Envelope(
            world=assign_ranks([peer], backend="torch")[0],
            environment={},
            search_path=[],
            function=b"",
            listener=listener,
        ).send(one)
        received = Envelope.receive(two).listener
        assert received is not None
        with received:
            assert received.getsockname() == listener.getsockname()
            assert not received.get_inheritable()
    one.send_values({"kind": "release"})
    assert two.receive() == ({"kind": "release"}, b"")


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 5000, reason="so many files may not be open"
)
def test_a_line_is_waited_on_where_many_files_are_open():
    """A notebook may have them, and ``select`` takes no descriptor from 1024 on."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        high = os.dup2(ours.fileno(), 5000, inheritable=False)
        line = WorkerPipe(socket.socket(fileno=high))
        assert not line.wait(0)
        WorkerPipe(theirs).send_values({"a": 1})
        assert line.wait(120)
        line.close()
