from __future__ import annotations

import json
import queue
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ports import closed_port
from sparkdl_runner import __version__
from sparkdl_runner.launch.agent import log_client
from sparkdl_runner.launch.agent.log_client import LogClient
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver import log_server
from sparkdl_runner.launch.driver.log_server import LogServer
from sparkdl_runner.launch.driver.watch import Watch
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.assignments import Assignment
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.channel import ChannelAddress
from sparkdl_runner.launch.wire.frames import LENGTH, MAC_BYTES, FrameCodec
from sparkdl_runner.launch.wire.message_json import encode
from sparkdl_runner.launch.wire.messages import (
    Failed,
    Gather,
    Hello,
    LoaderPlan,
    Logged,
    Message,
    Output,
    Ping,
    Placed,
    RequestGrowth,
    RequestStop,
    Stacks,
    Stop,
    Superfluous,
    Text,
    Unfinished,
    VitalSigns,
)
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, assign_ranks

PEERS = [
    Peer(
        partition=i,
        host="h",
        host_key="k",
        address="127.0.0.1",
        interface="lo",
        version=__version__,
    )
    for i in range(2)
]
WORLDS = assign_ranks(PEERS, backend="torch")

# How long to wait for what must come; nothing takes so long, even on a busy machine.
PATIENCE_SECONDS = 120.0


class Recorder:
    def __init__(self):
        self.heard = []

    def take(self, world, message):
        match message:
            case Output(lines):
                self.heard.append((world.rank, "output", lines))
            case Unfinished(text):
                self.heard.append((world.rank, "unfinished", text))
            case Text(text):
                self.heard.append((world.rank, "message", text))
            case Failed(outcome):
                self.heard.append((outcome.world.rank, "failed", outcome))
            case LoaderPlan(plan):
                self.heard.append((world.rank, "loader_plan", plan))
            case Logged(report):
                self.heard.append((world.rank, "logged", json.loads(report)["entries"]))


@pytest.fixture
def recorder():
    return Recorder()


def watch_of(num_proc=2):
    return Watch(
        config=RunConfig(),
        backend=get_backend("torch"),
        num_proc=num_proc,
        ask_stacks=dict,
        on_verdict=lambda verdict: None,
    )


def server_of(
    recorder, *, num_proc=2, listener=None, start_timeout_seconds=120.0, ranks_per_task=1
):
    """Not started."""
    config = RunConfig(start_timeout_seconds=start_timeout_seconds)
    server = LogServer(
        listener or network.listen("127.0.0.1"),
        host="127.0.0.1",
        num_proc=num_proc,
        receiver=recorder,
        attempt=AttemptSpec(backend="torch", function=b"", config=config, run="run"),
        ranks_per_task=ranks_per_task,
    )
    server.watch = watch_of(num_proc)
    return server


@pytest.fixture
def server(recorder):
    server = server_of(recorder)
    server.start()
    yield server
    server.close()


def client_of(server, rank=0, *, channel=None, **arguments):
    client = LogClient(
        channel or server.channel,
        PEERS[rank],
        **{
            "relay_output": True,
            "fence_seconds": 600.0,
            "on_assignment": lambda assignment: None,
            "on_stop": lambda will_restart: None,
            "on_request": lambda reason: None,
            "on_preempt": lambda reason: None,
            "on_growth": lambda reason: None,
            "on_stacks": lambda: Stacks(f"stacks of {rank}", ["10.0.0.9"]),
            **arguments,
        },
    )
    client.place(WORLDS[rank])
    return client


def test_what_a_rank_says_arrives_in_order_and_before_the_end(server, recorder):
    client = client_of(server)
    for number in range(100):
        client.take(WORLDS[0], Output([f"line {number}"]))
    client.take(WORLDS[0], Text("done ü"))
    assert client.notes(WORLDS[0]) == ()
    client.close()
    server.flush(PATIENCE_SECONDS)
    assert recorder.heard == [(0, "output", [f"line {n}"]) for n in range(100)] + [
        (0, "message", "done ü")
    ]


def test_how_a_rank_reads_its_data_has_arrived_when_the_rank_ends(server, recorder):
    client = client_of(server)
    client.take(WORLDS[0], LoaderPlan({"turn": 1}))
    assert client.notes(WORLDS[0]) == ()
    assert recorder.heard == [(0, "loader_plan", {"turn": 1})]
    client.close()


def test_output_that_nobody_asked_for_is_not_sent(server, recorder):
    client = client_of(server, relay_output=False)
    client.take(WORLDS[0], Output(["quiet"]))
    client.take(WORLDS[0], Unfinished("quiet too"))
    client.take(WORLDS[0], Text("loud"))
    client.close()
    assert recorder.heard == [(0, "message", "loud")]


def test_of_a_line_that_changes_only_the_last_state_waits_to_be_sent(recorder):
    listener = network.listen("127.0.0.1")
    server = server_of(recorder, num_proc=1, listener=listener)
    client = client_of(server)  # connected by the kernel; the server does not yet accept
    for number in range(2 * Message.most_waiting):
        client.take(WORLDS[0], Unfinished(f"{number}%"))
    client.take(WORLDS[0], Output(["line"]))
    server.start()
    client.close()
    server.close()
    assert recorder.heard == [(0, "unfinished", "511%"), (0, "output", ["line"])]
    assert client.notes(WORLDS[0]) == ()


def test_a_failure_arrives_without_its_pickle(server, recorder):
    outcome = Outcome(
        world=WORLDS[1],
        status=Status.FAILED,
        ended_at=1.5,
        exception="ValueError",
        message="bad",
        traceback="Traceback…",
        output_tail=("a", "b"),
        payload=b"a pickle",
    )
    client = client_of(server, rank=1)
    client.take(WORLDS[1], Failed(outcome))
    client.close()
    assert recorder.heard == [(1, "failed", replace(outcome, payload=b""))]


def test_the_largest_failure_fits_a_frame(server, recorder):
    client = client_of(server)
    outcome = Outcome(
        world=WORLDS[0],
        status=Status.FAILED,
        ended_at=0.0,
        exception="E",
        message="😀" * 100_000,
        traceback="😀" * 100_000,
        output_tail=("😀" * 20_000,) * 40,
    )
    client.take(WORLDS[0], Failed(outcome))
    client.close()
    assert [kind for _, kind, _ in recorder.heard] == ["failed"]


def test_the_driver_stops_ranks_that_are_there_and_ranks_that_come_later(server):
    stopped = [queue.SimpleQueue(), queue.SimpleQueue()]
    first = client_of(server, rank=0, on_stop=stopped[0].put)
    assert first.is_connected
    wait_for(lambda: 0 in server._agents)
    server.stop_ranks(will_restart=True)
    second = client_of(server, rank=1, on_stop=stopped[1].put)
    assert stopped[0].get(timeout=PATIENCE_SECONDS) is True
    assert stopped[1].get(timeout=PATIENCE_SECONDS) is False, "it has no rank to start again"
    first.close()
    second.close()


def test_a_request_to_stop_reaches_ranks_that_are_there_and_ranks_that_come_later(server):
    heard: list[list[str]] = [[], []]
    first = client_of(server, rank=0, on_request=heard[0].append)
    assert first.is_connected
    wait_for(lambda: 0 in server._agents)
    server.request(RequestStop("enough"))
    second = client_of(server, rank=1, on_request=heard[1].append)
    wait_for(lambda: heard == [["enough"], ["enough"]])
    server.call(server._send_request(RequestStop("enough")), PATIENCE_SECONDS)
    server.request(RequestStop("more than enough"))
    wait_for(lambda: heard == 2 * [["enough", "more than enough"]])
    first.close()
    second.close()


def test_only_the_agents_on_a_host_that_goes_hear_of_it_and_each_once(server):
    heard: list[list[str]] = [[], []]
    clients = [client_of(server, rank=rank, on_preempt=heard[rank].append) for rank in (0, 1)]
    wait_for(lambda: len(server._agents) == 2)
    for reason in ("soon", "soon", "now"):  # As the driver polls, it tells again.
        server.preempt({1, 7}, reason)
    wait_for(lambda: heard == [[], ["soon", "now"]])
    for client in clients:
        client.close()


def test_a_request_to_grow_and_one_to_stop_reach_the_same_ranks(server):
    heard: list[str] = []
    server.request(RequestGrowth("1 → 2 ranks"))
    client = client_of(server, on_request=heard.append, on_growth=heard.append)
    wait_for(lambda: heard == ["1 → 2 ranks"])
    server.request(RequestStop("enough"))
    wait_for(lambda: heard == ["1 → 2 ranks", "enough"])
    client.close()


def test_a_client_with_another_key_is_not_heard(server, recorder, monkeypatch):
    channel = replace(server.channel, key=secrets.token_bytes(32))
    with monkeypatch.context() as patch:  # The other one may take its time.
        patch.setattr(log_client, "CONNECT_SECONDS", 0.2)
        stranger = client_of(server, channel=channel)
        stranger.take(WORLDS[0], Text("forged"))
        stranger.close()
    honest = client_of(server, rank=1)
    honest.take(WORLDS[1], Text("true"))
    honest.close()
    assert recorder.heard == [(1, "message", "true")]


def read_to_the_end(connection):
    while connection.recv(4096):
        pass


def test_recorded_frames_cannot_be_replayed(server, recorder):
    """A frame that was right on one connection is wrong on another: the nonce differs."""
    with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as connection:
        nonce = connection.recv(16, socket.MSG_WAITALL)
        codec = FrameCodec(server.channel.key, nonce, b"agent")
        hello = codec.seal(*encode(Hello(PEERS[0])))
        hello += codec.seal(*encode(Placed(WORLDS[0])))
        message = codec.seal(*encode(Text("once")))
        connection.sendall(hello + message + message)
        read_to_the_end(connection)  # the repeated frame ended the connection
    with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as connection:
        connection.recv(16, socket.MSG_WAITALL)
        connection.sendall(hello + message)
        assert connection.recv(1) == b""
    assert recorder.heard == [(0, "message", "once")]


def test_an_oversized_frame_ends_the_connection(server):
    with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as connection:
        connection.recv(16, socket.MSG_WAITALL)
        connection.sendall(LENGTH.pack(0xFFFFFFFF))
        assert connection.recv(1) == b""


def test_an_unreachable_driver_is_said_once_and_the_run_goes_on(server, capsys, monkeypatch):
    monkeypatch.setattr(log_client, "CONNECT_SECONDS", 0.2)
    with closed_port() as port:
        client = client_of(server, channel=replace(server.channel, port=port))
        client.take(WORLDS[0], Output(["lost"]))
        wait_for(client._settled.is_set)
        assert not client.is_connected
        assert capsys.readouterr().err.count("does not reach the driver") == 1
        client.close()
    assert "could not reach the driver at 127.0.0.1" in client.notes(WORLDS[0])[0]
    assert "does not reach the driver" not in capsys.readouterr().err


def test_a_driver_that_is_known_not_to_be_reached_is_not_tried_and_not_told_again(server, capsys):
    answers = []
    client = client_of(
        server, channel=replace(server.channel, host=""), on_assignment=answers.append
    )
    wait_for(client._settled.is_set)
    assert answers == [Gather()], "agents exchange their reports by Spark's barrier at once"
    client.take(WORLDS[0], Output(["lost"]))
    assert not client.driver_has_heard()
    assert client.notes(WORLDS[0]) == ()
    assert capsys.readouterr().err == ""


def test_a_failure_gets_through_a_queue_that_is_full(recorder, monkeypatch):
    monkeypatch.setattr(Message, "most_waiting", 3)
    listener = network.listen("127.0.0.1")
    server = server_of(recorder, num_proc=1, listener=listener)
    client = client_of(server)  # connected by the kernel; the server does not yet accept
    for _ in range(10):
        client.take(WORLDS[0], Output(["line"]))
    client.take(WORLDS[0], Failed(Outcome(world=WORLDS[0], status=Status.FAILED, ended_at=0.0)))
    server.start()
    client.close()
    server.close()
    assert [kind for _, kind, _ in recorder.heard][-1] == "failed"
    assert client._outbox.lost_lines == 7


def test_a_failure_is_heard_once_the_driver_has_answered_it(server):
    client = client_of(server)
    answer = threading.Timer(0.05, server.stop_ranks)
    answer.start()
    assert client.driver_has_heard()
    client.close()


def test_a_failure_that_nobody_answers_was_not_heard(server, monkeypatch):
    monkeypatch.setattr(log_client, "ANSWER_SECONDS", 0.1)
    client = client_of(server)
    assert not client.driver_has_heard()
    client.close()


def test_a_connection_that_the_driver_has_closed_is_no_connection(server):
    client = client_of(server)
    assert client.is_connected
    server.close()
    wait_for(lambda: not client.is_connected)
    client.close()


def test_a_driver_that_does_not_read_costs_lines_not_time(monkeypatch):
    monkeypatch.setattr(log_client, "FLUSH_SECONDS", 0.2)
    listener = network.listen("127.0.0.1")
    address = ChannelAddress(host="127.0.0.1", port=listener.getsockname()[1], key=bytes(32))
    client = client_of(None, channel=address)
    accepted, _ = listener.accept()
    accepted.sendall(bytes(16) + FrameCodec(bytes(32), bytes(16), b"driver").seal(*encode(Ping())))
    assert client.is_connected
    for _ in range(2000):  # Were one to wait for the driver, it would wait for ever.
        client.take(WORLDS[0], Output(["x" * 60_000]))
    assert client._outbox.lost_lines > 1000
    notes = client.notes(WORLDS[0])
    # What waited in the queue is not shown either: only a few frames are in the kernel's hands.
    assert client._outbox.lost_lines > 2000 - Message.most_waiting
    assert f"{client._outbox.lost_lines} lines of rank 0 were not shown" in notes[0]
    accepted.close()
    listener.close()
    client._sender.join()


def test_the_driver_asks_for_stacks(server):
    clients = [client_of(server, rank) for rank in range(2)]
    assert all(client.is_connected for client in clients)
    wait_for(lambda: len(server._agents) == 2)
    assert server.ask_stacks() == {
        0: Stacks("stacks of 0", ["10.0.0.9"]),
        1: Stacks("stacks of 1", ["10.0.0.9"]),
    }
    for client in clients:
        client.close()


def test_while_a_rank_gathers_its_stacks_it_hears_the_driver(server):
    reasons: queue.Queue[str] = queue.Queue()

    def gather():
        server.request(RequestStop("meanwhile"))
        return Stacks(reasons.get(timeout=PATIENCE_SECONDS), [])

    client = client_of(server, on_stacks=gather, on_request=reasons.put)
    assert client.is_connected
    wait_for(lambda: server._agents)
    assert server.ask_stacks() == {0: Stacks("meanwhile", [])}
    client.close()


def test_rank_0_is_waited_for_longer_as_it_asks_nccl(server, monkeypatch):
    monkeypatch.setattr(log_server, "STACKS_SECONDS", 0.0)
    has_answered = threading.Event()

    def gather(rank):
        if rank == 1:
            has_answered.wait(PATIENCE_SECONDS)
        time.sleep(0.1)
        return Stacks(str(rank), [])

    clients = [client_of(server, rank, on_stacks=partial(gather, rank)) for rank in range(2)]
    assert all(client.is_connected for client in clients)
    wait_for(lambda: {agent.rank for agent in server._agents.values()} == {0, 1})
    assert server.ask_stacks() == {0: Stacks("0", [])}
    has_answered.set()
    for client in clients:
        client.close()


def test_a_rank_that_ends_while_it_is_asked_is_not_waited_for(server):
    is_asked, has_ended = threading.Event(), threading.Event()

    def gather():
        is_asked.set()
        has_ended.wait(PATIENCE_SECONDS)
        return Stacks("late", [])

    client = client_of(server, on_stacks=gather)
    wait_for(lambda: server._agents)
    with ThreadPoolExecutor(1) as executor:
        asking = executor.submit(server.ask_stacks)
        assert is_asked.wait(PATIENCE_SECONDS)
        begun = server._loop.time()
        client.close()
        assert asking.result() == {}
        assert server._loop.time() - begun < log_server.FIRST_STACKS_SECONDS / 2
    has_ended.set()


def test_the_watch_is_told_of_signs_and_of_the_end(server):
    client = client_of(server)
    signs = VitalSigns(
        silent_seconds=1.0, idle_seconds=2.0, joining_seconds=0.0, state="S", has_begun=True
    )
    client.take(WORLDS[0], signs)
    client.close()
    server.flush(PATIENCE_SECONDS)
    rank = server.watch._ranks[0]
    assert rank.world == WORLDS[0]
    assert rank.ended_at is not None
    assert rank.gone_at is None


def test_an_agent_that_goes_without_a_word_is_gone(server):
    with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as connection:
        codec = FrameCodec(server.channel.key, connection.recv(16, socket.MSG_WAITALL), b"agent")
        connection.sendall(codec.seal(*encode(Hello(PEERS[0]))))
        connection.sendall(codec.seal(*encode(Placed(WORLDS[0]))))
        wait_for(lambda: 0 in server._agents)
    wait_for(lambda: server.watch._ranks[0].gone_at is not None)


def test_agents_that_say_nothing_after_they_got_their_seats_are_missed(server):
    with ExitStack() as stack:
        for peer in PEERS:
            connection = stack.enter_context(socket.create_connection(server.address))
            nonce = connection.recv(16, socket.MSG_WAITALL)
            connection.sendall(
                FrameCodec(server.channel.key, nonce, b"agent").seal(*encode(Hello(peer)))
            )
        wait_for(lambda: server.watch.running() == {0, 1})
    wait_for(lambda: {one.world.rank for one in server.watch.missing()} == {0, 1})


def test_a_connection_that_breaks_is_made_again(server, recorder):
    client = client_of(server)
    client.take(WORLDS[0], Text("before"))
    wait_for(lambda: recorder.heard)
    first = server._agents[0].writer
    server._loop.call_soon_threadsafe(first.transport.abort)
    wait_for(lambda: 0 in server._agents and server._agents[0].writer is not first)
    client.take(WORLDS[0], Text("after"))
    client.close()
    assert [text for _, _, text in recorder.heard] == ["before", "after"]
    assert server.watch._ranks[0].gone_at is None


def test_a_worker_that_is_cut_off_from_the_driver_is_ended(server):
    ended = threading.Event()
    client = client_of(server, on_stop=lambda _: ended.set())
    assert client.is_connected
    assert not ended.is_set()
    # From here on: before, a busy machine may keep a driver silent that is there.
    client._fence_seconds = 0.5
    server.close()
    assert ended.wait(PATIENCE_SECONDS)
    client._sender.join(PATIENCE_SECONDS)
    client.close()
    assert client.fence == "had not heard the driver for 0.5 s"


def test_a_suspended_driver_of_the_same_host_is_waited_for(server, recorder):
    ended = threading.Event()
    client = client_of(server, fence_seconds=0.5, is_patient=True, on_stop=lambda _: ended.set())
    assert client.is_connected
    client.take(WORLDS[0], Text("before"))
    wait_for(lambda: recorder.heard)
    server._loop.call_soon_threadsafe(time.sleep, 2.0)
    client.take(WORLDS[0], Text("meanwhile"))
    wait_for(lambda: len(recorder.heard) == 2)
    client.close()
    assert not ended.is_set()
    assert client.fence == ""


def test_a_server_closes_while_agents_are_connected(server):
    client = client_of(server)
    assert client.is_connected
    wait_for(lambda: 0 in server._agents)
    closing = threading.Thread(target=server.close)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    client.close()


def test_an_agent_that_was_turned_away_at_first_tries_again(recorder):
    listener = network.listen("127.0.0.1")
    server = server_of(recorder, num_proc=1, listener=listener)
    client = client_of(server)
    listener.accept()[0].close()  # as a server does that has too many
    server.start()
    client.take(WORLDS[0], Text("here"))
    client.close()
    server.close()
    assert [text for _, _, text in recorder.heard] == ["here"]


def test_an_agent_that_was_never_heard_goes_on(server, monkeypatch):
    monkeypatch.setattr(log_client, "CONNECT_SECONDS", 0.2)
    ended = threading.Event()
    with closed_port() as port:
        channel = replace(server.channel, port=port)
        client = client_of(
            server, channel=channel, fence_seconds=0.1, on_stop=lambda _: ended.set()
        )
        assert not client.is_connected
        assert not ended.wait(0.5)
        client.close()


def test_the_driver_gives_each_agent_its_seat_once_all_have_come(server):
    answers: list[list] = [[], []]
    second = client_of(server, 1, on_assignment=answers[1].append)
    assert second.is_connected
    assert answers == [[], []]
    first = client_of(server, 0, on_assignment=answers[0].append)
    wait_for(lambda: all(answers))
    assert [[given.world for given in one] for one in answers] == [[WORLDS[0]], [WORLDS[1]]]
    # An agent whose connection breaks before it has heard that is told again.
    server._loop.call_soon_threadsafe(server._agents[1].writer.transport.abort)
    wait_for(lambda: len(answers[1]) == 2)
    assert answers[1][0] == answers[1][1]
    first.close()
    second.close()


def test_the_addresses_of_thousands_of_hosts_reach_rank_0(server):
    """Of 4,096 hosts, in all more than fits a frame."""
    answers: list[list] = [[], []]
    clients = [client_of(server, rank, on_assignment=answers[rank].append) for rank in (0, 1)]
    wait_for(lambda: all(answers))
    assert answers[0][0] == server._assignments[0]
    many = tuple(sorted(f"2001:db8:1111:2222:3333:4444:5555:{one:04x}" for one in range(40_000)))
    server._assignments = {**server._assignments, 0: replace(server._assignments[0], peers=many)}
    server._loop.call_soon_threadsafe(server._agents[0].writer.transport.abort)
    wait_for(lambda: len(answers[0]) == 2)
    assert set(many) <= set(answers[0][1].peers)
    for client in clients:
        client.close()


def test_agents_turn_to_one_another_where_one_does_not_reach_the_driver(recorder):
    server = server_of(recorder, start_timeout_seconds=1)
    server.start()
    answers: list[list] = [[], []]
    first = client_of(server, 0, on_assignment=answers[0].append)
    wait_for(lambda: answers[0] == [Gather()])
    second = client_of(server, 1, on_assignment=answers[1].append)  # It comes late.
    wait_for(lambda: answers[1] == [Gather()])
    first.close()
    second.close()
    server.close()


def test_agents_that_come_late_in_the_time_for_the_start_are_waited_for(server, monkeypatch):
    """In Spark's barrier each would get what all have told, a square of their number."""
    alarms: list[float] = []
    call_later = server._loop.call_later

    def note(seconds, *rest, **more):
        alarms.append(seconds)
        return call_later(seconds, *rest, **more)

    monkeypatch.setattr(server._loop, "call_later", note)
    answers: list[list] = [[], []]
    first = client_of(server, 0, on_assignment=answers[0].append)
    assert first.is_connected
    assert max(alarms) == 60.0  # Half of start_timeout_seconds.
    second = client_of(server, 1, on_assignment=answers[1].append)
    wait_for(lambda: all(answers))
    assert [type(one[0]) for one in answers] == [Assignment, Assignment]
    first.close()
    second.close()


def test_all_addresses_of_a_host_are_known_where_ranks_use_another_than_spark(server, monkeypatch):
    peer = replace(PEERS[1], address="10.1.0.1", addresses=("10.0.0.1", "10.1.0.1"))
    monkeypatch.setitem(globals(), "PEERS", [PEERS[0], peer])
    clients = [client_of(server, rank) for rank in range(2)]
    assert all(client.is_connected for client in clients)
    world = replace(WORLDS[1], address="10.1.0.1")
    assert server.addresses_of(world) == ("10.0.0.1", "10.1.0.1")
    assert server.addresses_of(replace(world, address="10.2.0.1")) == ()
    for client in clients:
        client.close()


def test_a_refusal_of_the_agents_is_the_reason_why_nothing_starts(server, monkeypatch):
    old = [PEERS[0], replace(PEERS[1], version="0.0.1")]
    monkeypatch.setitem(globals(), "PEERS", old)
    clients = [client_of(server, rank) for rank in range(2)]
    wait_for(lambda: server.watch.check() is not None)
    assert "has sparkdl_runner 0.0.1" in server.watch.check().launch_problem
    for client in clients:
        client.close()


def test_a_first_connection_that_fails_is_tried_again_for_as_long_as_the_rank_runs(
    recorder, monkeypatch
):
    monkeypatch.setattr(log_client, "CONNECT_SECONDS", 0.2)
    listener = network.listen("127.0.0.1")
    server = server_of(recorder, num_proc=1, listener=listener)
    answers: list = []
    client = client_of(server, on_assignment=answers.append)
    wait_for(lambda: answers == [Gather()])  # The agents find one another without the driver.
    assert not client.is_connected
    client.take(WORLDS[0], Text("early"))
    server.start()
    wait_for(lambda: recorder.heard)
    client.take(WORLDS[0], Text("late"))
    assert client.notes(WORLDS[0]) == ()
    server.close()
    assert [text for _, _, text in recorder.heard] == ["early", "late"]


def test_who_is_no_driver_cannot_pass_for_it(monkeypatch):
    """A port that was given to another program takes connections, and says what it likes."""
    monkeypatch.setattr(log_client, "CONNECT_SECONDS", 0.2)
    with network.listen("127.0.0.1") as listener:
        channel = ChannelAddress(
            host="127.0.0.1", port=listener.getsockname()[1], key=secrets.token_bytes(32)
        )
        answers: list = []
        client = client_of(None, channel=channel, on_assignment=answers.append)
        with listener.accept()[0] as stranger:
            stranger.sendall(
                bytes(16) + FrameCodec(b"", bytes(16), b"driver").seal(*encode(Stop()))
            )
            wait_for(lambda: answers == [Gather()])
            assert not client.is_connected
            client.close()


@pytest.mark.one_lane
def test_ninety_strangers_do_not_keep_a_small_gang_out(server):
    with ExitStack() as stack:
        for _ in range(90):
            connection = socket.create_connection(server.address, timeout=PATIENCE_SECONDS)
            stack.enter_context(connection)
        answers: list[list] = [[], []]
        clients = [client_of(server, rank, on_assignment=answers[rank].append) for rank in range(2)]
        wait_for(lambda: all(answers))
        assert [one.world for one, *_ in answers] == [WORLDS[0], WORLDS[1]]
        for client in clients:
            client.close()


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@settings(max_examples=40)
@given(
    st.binary(min_size=32, max_size=32),
    st.dictionaries(st.text(), st.text()),
    st.integers(min_value=0),
    st.integers(min_value=0, max_value=7),
)
def test_a_frame_with_any_bit_flipped_is_refused(key, message, position, bit):
    frame = bytearray(FrameCodec(key, bytes(16), b"agent").seal(message))
    body = frame[LENGTH.size :]
    body[position % len(body)] ^= 1 << bit
    with pytest.raises(ValueError, match="MAC"):
        FrameCodec(key, bytes(16), b"agent").open(bytes(body[:MAC_BYTES]), bytes(body[MAC_BYTES:]))


def test_a_frame_of_the_other_direction_is_refused():
    frame = FrameCodec(bytes(32), bytes(16), b"driver").seal({"kind": "stop"})
    body = frame[LENGTH.size :]
    with pytest.raises(ValueError, match="MAC"):
        FrameCodec(bytes(32), bytes(16), b"agent").open(body[:MAC_BYTES], body[MAC_BYTES:])


def test_the_key_is_not_shown(server):
    assert server.channel.key.hex() not in repr(server.channel)
    assert "key" not in repr(server.channel)


@pytest.mark.parametrize(
    ("lines", "reports", "words"),
    [
        (0, 0, []),
        (4, 0, ["4 lines of rank 0 were not shown"]),
        (0, 5, ["5 reports of rank 0 "]),
        (1, 1, ["1 lines of rank 0 were not shown", "1 reports of rank 0 "]),
    ],
)
def test_what_was_lost_is_counted_in_the_notes(lines, reports, words):
    client = SimpleNamespace(
        close=lambda: None,
        _is_fenced=False,
        _heard_at=1.0,
        _outbox=SimpleNamespace(lost_lines=lines, lost_reports=reports),
    )
    notes = LogClient.notes(client, WORLDS[0])
    assert len(notes) == len(words)
    assert all(note.startswith(word) for note, word in zip(notes, words, strict=True))


def test_each_purpose_has_a_word_of_its_own_that_only_this_attempt_can_say():
    channels = [ChannelAddress(host="h", port=1, key=bytes([n]) * 32) for n in (1, 1, 2)]
    words = [one.secret_for("exits") for one in channels]
    assert words[0] == words[1] != words[2]
    assert words[0] != channels[0].secret_for("rendezvous")
    assert len(words[0]) == 64
    assert words[0].isalnum()


@pytest.mark.parametrize("is_connected", [True, False])
def test_confirmations_are_waited_for_at_the_end_where_the_driver_hears(is_connected):
    order = []
    outbox = SimpleNamespace(
        wait_until_confirmed=lambda seconds: order.append("confirmed"),
        close=lambda: order.append("close"),
        abandon=lambda: order.append("abandon"),
    )
    client = SimpleNamespace(
        _is_closing=False,
        is_connected=is_connected,
        _outbox=outbox,
        _sender=SimpleNamespace(join=lambda seconds: order.append("sent")),
    )
    LogClient.close(client)
    assert order == [*["confirmed"] * is_connected, "close", "sent", "abandon"]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.dictionaries(st.text(max_size=5), st.integers(), max_size=3), st.binary())
    ),
    st.data(),
)
def test_frames_are_found_whole_however_they_come_in_pieces(sent, data):
    sealing, opening = (FrameCodec(b"key", b"nonce", b"agent") for _ in range(2))
    stream = b"".join(sealing.seal(*content) for content in sent)
    buffer, found = bytearray(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        buffer += stream[:size]
        stream = stream[size:]
        found += opening.split(buffer)
    assert found == sent
    assert not buffer


def copy_of(server, rank, number):
    """An agent whose task Spark has started again; and what it hears."""
    heard = queue.SimpleQueue()
    client = client_of(
        server,
        rank,
        copy=number,
        on_assignment=heard.put,
        on_stop=lambda _: heard.put(Stop()),
    )
    return client, heard


def test_a_task_that_is_started_again_before_its_rank_has_begun_gets_the_rank(server):
    lost, _ = copy_of(server, 0, 0)
    assert lost.is_connected
    lost.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while server._agents:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # The other alone does not make the gang whole: it is the lost one's place that is empty.
    other, others = copy_of(server, 1, 0)
    assert other.is_connected
    assert not server._assignments
    again, heard = copy_of(server, 0, 1)
    assert heard.get(timeout=PATIENCE_SECONDS).world.rank == 0
    assert others.get(timeout=PATIENCE_SECONDS).world.rank == 1
    for client in (again, other):
        client.close()


def test_the_ranks_of_a_task_that_is_started_again_begin_in_one_of_its_starts(
    recorder, monkeypatch
):
    """Spark ends the other start when one has succeeded, whichever of its ranks still run."""
    three = [*PEERS, replace(PEERS[1], partition=2)]
    monkeypatch.setitem(globals(), "PEERS", three)
    monkeypatch.setitem(globals(), "WORLDS", assign_ranks(three, backend="torch"))
    server = server_of(recorder, num_proc=3, ranks_per_task=2)
    server.start()
    first = [copy_of(server, rank, 0) for rank in range(2)]
    assert all(client.is_connected for client, _ in first)
    again = copy_of(server, 0, 1)
    assert again[0].is_connected
    other = copy_of(server, 2, 0)  # Now there are three, but not those of one start.
    assert other[0].is_connected
    assert not server._assignments
    last = copy_of(server, 1, 1)
    for rank, (_, heard) in enumerate([again, last, other]):
        assert heard.get(timeout=PATIENCE_SECONDS).world.rank == rank
    for _, heard in first:
        assert heard.get(timeout=PATIENCE_SECONDS) == Superfluous()
    server.stop_ranks()
    for client, heard in (*first, again, last, other):
        assert heard.get(timeout=PATIENCE_SECONDS) == Stop()
        client.close()
    server.close()


def test_a_copy_of_a_task_whose_rank_runs_waits_until_the_ranks_end(server, capsys):
    agents = [copy_of(server, rank, 0) for rank in range(2)]
    for _, heard in agents:
        heard.get(timeout=PATIENCE_SECONDS)
    copy, told = copy_of(server, 1, 1)
    assert told.get(timeout=PATIENCE_SECONDS) == Superfluous()
    assert "task of rank 1 again, on h: the rank goes on where it is" in capsys.readouterr().err
    assert server.watch.running() == {0, 1}
    assert not server.watch.missing()
    server.stop_ranks()
    assert told.get(timeout=PATIENCE_SECONDS) == Stop()
    for client in (copy, *(client for client, _ in agents)):
        client.close()


def test_a_task_that_is_started_again_after_its_rank_was_lost_is_that_ranks_loss(server, capsys):
    agents = [copy_of(server, rank, 0) for rank in range(2)]
    for _, heard in agents:
        heard.get(timeout=PATIENCE_SECONDS)
    server.watch.ended = lambda world: None  # A lost agent has no last word, as this one has.
    agents[1][0].close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while 1 in server._agents:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    copy, told = copy_of(server, 1, 1)
    assert told.get(timeout=PATIENCE_SECONDS) == Superfluous()
    assert "the rank is lost, and begins no second time" in capsys.readouterr().err
    assert [outcome.world.rank for outcome in server.watch.missing()] == [1]
    server.stop_ranks()
    assert told.get(timeout=PATIENCE_SECONDS) == Stop()
    for client in (copy, agents[0][0]):
        client.close()
