"""When the ranks of an attempt are ended because one has failed, and who gets their reports."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver import gang
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.messages import (
    HostMetrics,
    Logged,
    Output,
    Progress,
    Text,
    Unfinished,
)
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")], backend="torch"
)[0]
CAUSE = Outcome(world=WORLD, status=Status.DIED, ended_at=0.0)
LOST_PEER = Outcome(world=WORLD, status=Status.FAILED, ended_at=0.0, is_communication_error=True)


class Gang(gang.Gang):
    """A gang of no processes, which notes that it is ended."""

    def __init__(
        self,
        *reports,
        show_output=False,
        backend="torch",
        num_proc=1,
        may_restart=False,
        **settings,
    ):
        config = RunConfig(**settings)
        attempt = AttemptSpec(
            backend=backend, function=b"", config=config, run="r", may_restart=may_restart
        )
        super().__init__(attempt, num_proc, reports, show_output=show_output)
        self.times_ended = 0

    def run(self):
        return self.ends([])

    def end_ranks(self):
        self.times_ended += 1

    def request_stop(self, reason):
        pass

    def ask_stacks(self):
        return {}


@pytest.fixture
def timer(monkeypatch):
    """Runs what a timer has been started for, if it was not cancelled; the test says when."""
    started = []
    monkeypatch.setattr(gang, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(threading.Timer, "start", lambda self: started.append(self))
    return lambda: [one.run() for one in started]


def test_a_cause_ends_the_gang_at_once_and_only_once():
    ranks = Gang()
    ranks.failed(CAUSE)
    assert ranks.times_ended == 1
    ranks.failed(CAUSE)
    ranks.stop()
    assert ranks.times_ended == 1
    assert ranks.failures == [CAUSE, CAUSE]


def test_a_lost_connection_waits_for_its_cause_to_be_heard(timer):
    ranks = Gang()
    ranks.failed(LOST_PEER)
    assert not ranks.times_ended
    timer()
    assert ranks.times_ended == 1


def outcome(status, **fields):
    return Outcome(world=WORLD, status=status, ended_at=0.0, **fields)


@pytest.mark.parametrize(
    ("failures", "settings", "expected"),
    [
        ([], {}, False),
        ([CAUSE], {}, True),
        ([LOST_PEER, outcome(Status.HUNG)], {}, True),
        ([outcome(Status.FAILED)], {}, False),
        ([outcome(Status.FAILED)], {"restart_user_errors": True}, True),
        ([outcome(Status.FAILED, is_worth_a_restart=True)], {}, True),
        ([outcome(Status.FAILED, is_preemption=True)], {}, True),
        ([CAUSE, outcome(Status.CANCELLED)], {}, False),
    ],
)
def test_a_restart_is_expected_where_the_failures_allow_it(failures, settings, expected):
    for may_restart in (False, True):
        ranks = Gang(may_restart=may_restart, **settings)
        ranks.failures = failures
        assert ranks.will_restart is (expected and may_restart)


def test_what_all_ranks_raise_at_once_is_heard_of_all_or_waited_for(timer):
    mismatch = replace(CAUSE, status=Status.FAILED, message="Mismatched allreduce tensor shapes")
    ranks = Gang(backend="horovod", num_proc=2)
    ranks.failed(mismatch)
    assert not ranks.times_ended
    ranks.failed(mismatch)
    assert ranks.times_ended == 1, "all have raised it"
    ranks = Gang(backend="horovod", num_proc=2)
    ranks.failed(mismatch)
    timer()
    assert ranks.times_ended == 1
    ranks = Gang(num_proc=2)
    ranks.failed(mismatch)
    assert ranks.times_ended == 1, "torch raises no such error"


def test_closing_forgets_an_end_that_is_still_to_come(timer):
    ranks = Gang()
    ranks.failed(LOST_PEER)
    ranks.close()
    timer()
    assert not ranks.times_ended


class Listening(Reports):
    def __init__(self):
        self.heard = []

    def progress(self, world, report):
        self.heard.append(report)

    def logged(self, world, entries):
        self.heard.append(entries)

    def host_metrics(self, world, values):
        self.heard.append(values["at"])


def test_a_report_comes_in_two_parts_and_what_is_wrong_with_it_is_shown(capsys):
    listening = Listening()
    ranks = Gang(listening)
    entry = ["metric", "loss", 1.0, 0, 1, {}]
    ranks.take(WORLD, Progress.of({"step": 1, "problems": [], "entries": []}))
    ranks.take(WORLD, Progress.of({"step": 2, "problems": ["it is late"], "entries": [entry]}))
    assert listening.heard == [
        {"step": 1, "problems": []},
        {"step": 2, "problems": ["it is late"]},
        [entry],
    ]
    assert capsys.readouterr().err == "[rank 0] it is late\n"


def test_what_must_arrive_is_acknowledged_and_what_a_later_report_makes_up_for_is_not():
    nothing = {"step": 1, "problems": [], "entries": []}
    entry = ["metric", "loss", 1.0, 0, 1, {}]
    assert type(Progress.of(nothing)) is Progress
    assert type(Progress.of({**nothing, "problems": ["it is late"]})) is Logged
    assert Progress.of({**nothing, "entries": [entry, entry]}).num_entries == 2


def test_a_report_that_is_not_understood_is_said_once_and_others_hear_all(capsys):
    def stumble(world, values):
        raise KeyError(values["at"])

    listening = Listening()
    stumbling = SimpleNamespace(begin=lambda cancel: None, host_metrics=stumble)
    ranks = Gang(stumbling, listening)
    for at in (1, 2):
        ranks.take(WORLD, HostMetrics({"at": at}))
    for text in (b"no JSON", b"[]", b"{}"):
        ranks.take(WORLD, Logged(text, 1))
    assert listening.heard == [1, 2]
    assert capsys.readouterr().err == (
        "sparkdl_runner: a report of the ranks was not understood: KeyError(1)\n"
    )


@pytest.mark.parametrize("shows", [True, False])
def test_a_message_is_shown_whether_or_not_what_ranks_print_is(shows, capsys):
    ranks = Gang(show_output=shows)
    ranks.take(WORLD, Output(["printed"]))
    ranks.take(WORLD, Text("sent"))
    assert capsys.readouterr().out == shows * "[rank 0] printed\n" + "[rank 0] sent\n"


@pytest.mark.parametrize("shows", [True, False])
def test_a_line_that_has_not_ended_is_shown_until_the_gang_is_closed(shows, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    ranks = Gang(show_output=shows)
    ranks.take(WORLD, Unfinished("10%"))
    assert capsys.readouterr().out.rpartition("\r")[2] == shows * "[rank 0] 10%"
    ranks.close()
    assert capsys.readouterr().out.replace("\r", "").strip() == ""


def test_lines_that_a_receiver_shows_are_not_on_the_console(capsys):
    class Shows(Reports):
        def __init__(self, shows):
            self.shows, self.seen = shows, []

        def printed(self, world, lines):
            self.seen += lines
            if self.shows is None:
                raise TypeError
            return self.shows

    # A stream that takes no text must not end a training.
    for shows, on_console in (True, ""), (False, "[rank 0] a\n"), (None, "[rank 0] a\n"):
        receivers = Shows(shows), Reports()
        Gang(*receivers, show_output=True).take(WORLD, Output(["a"]))
        assert receivers[0].seen == ["a"]
        assert capsys.readouterr().out == on_console
