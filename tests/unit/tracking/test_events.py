"""The events of a run, for programs: their lines, their fields, and where none can be written."""

from __future__ import annotations

import json
import os
import re
import resource
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

import sparkdl_runner
from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.errors import LaunchError, RunCancelledError, WorkerDiedError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.rank.world import Peer, assign_ranks
from sparkdl_runner.runner import DistributedRunner
from sparkdl_runner.tracking.report.events import Events, events_to
from sparkdl_runner.tracking.report.performance import Counts
from sparkdl_runner.tracking.run.rank_reports import RankReports

PEERS = [
    Peer(partition=i, host="h", host_key="h", address="10.0.0.1", interface="e") for i in range(2)
]
WORLDS = assign_ranks(PEERS, backend="torch")
OF_RANK_1 = {"rank": 1, "host": "h", "attempt": 0, "output_tail": ()}
PAGE = Path(sparkdl_runner.__file__).parents[1] / "docs/tracking.md"


def report(step, **facts):
    counts = vars(Counts(steps=step, samples=10 * step, running_seconds=2.0))
    return {**counts, "step": step, "total_steps": 9, "epoch": None, "facts": facts}


def documented():
    """The fields of each event, as the page has them."""
    section = PAGE.read_text().partition("## For programs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", section, re.MULTILINE)
    return {
        event: set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", fields))) for event, fields in rows
    }


def test_all_that_happens_is_an_event_with_the_fields_that_the_page_names():
    written: list[str] = []
    redact = Redactor(["hunter22hunter22"])
    events = Events(written.append, "r", redact, RankReports(), now=lambda: 7.0)
    started = {"num_proc": 2, "backend": "torch", "version": "1", "mlflow_run_id": None}
    events.write("started", **started)
    events.begin_attempt(0)
    events.progress(WORLDS[1], report(3))
    events.progress(WORLDS[0], report(3, checkpoint_step=2, checkpoint="s3://b/step-2"))
    events.progress(WORLDS[0], report(3, checkpoint_step=2))  # Nothing is new.
    entries = [["metric", "loss", 0.5, 7000, 3, {}], ["metric", "lr", float("nan"), 7000, 3, {}]]
    events.logged(WORLDS[0], [*entries, ["param", "secret", "x"], ["tag", "t", "x"]])
    events.slow_ranks("rank 1 is slow")
    died = WorkerDiedError("Rank 1 died: hunter22hunter22.\nmore", **OF_RANK_1)
    events.end_attempt(died)
    events.begin_attempt(1)
    events.end_attempt(None, "2 → 3 ranks")
    events.end_attempt(None)
    measured = {"level": "quick", "seconds": 1.5, "lines": [], "findings": [], "kept_out": []}
    events.preflight({**measured, "rates": {"h": 1e9}, "ranks": []})
    events.write("ended", status="finished", seconds=1.0)
    lines = [json.loads(line) for line in written]
    assert [line["event"] for line in lines] == [
        *("started", "attempt", "checkpoint", "progress", "metric", "metric", "slow_ranks"),
        *("fault", "restart", "attempt", "growth", "preflight", "ended"),
    ]
    assert {(line.pop("time"), line.pop("run")) for line in lines} == {(7.0, "r")}
    assert lines[3] == {
        "event": "progress",
        "attempt": 0,
        "step": 3,
        "total_steps": 9,
        "samples_per_second": 30.0,
    }
    assert lines[4] == {"event": "metric", "name": "loss", "value": 0.5, "step": 3}
    assert lines[5]["value"] == "nan"
    assert lines[7] == {
        "event": "fault",
        "attempt": 0,
        "error": "WorkerDiedError",
        "rank": 1,
        "host": "h",
        "message": "Rank 1 died: [redacted].",
    }
    fields = documented()
    assert {line["event"] for line in lines} == set(fields)
    for line in lines:
        assert line.keys() - {"event"} <= fields[line["event"]]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (ValueError("x"), "failed"),
        (KeyboardInterrupt(), "killed"),
        (RunCancelledError("x"), "killed"),
    ],
)
def test_the_last_event_says_how_it_ended_and_runs_are_added(tmp_path, error, status):
    path = tmp_path / "events.jsonl"
    path.write_text("{}\n")
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, events_to(str(path), Redactor([]), RankReports(), "r") as (events,):
        events.begin_attempt(0)
        if error is not None:
            raise error
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("event") for line in lines] == [None, "started", "attempt", "ended"]
    assert lines[-1]["status"] == status


def test_without_a_target_nobody_writes_and_standard_output_is_one(capsys):
    with DistributedRunner(num_proc=-1)._events("r", []) as nobody:
        assert nobody == []
    with events_to("-", Redactor([]), RankReports(), "r"):
        pass
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == [
        "started",
        "ended",
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_told_once_and_ends_nothing(capsys):
    with events_to("/dev/full", Redactor([]), RankReports(), "r") as (events,):
        for attempt in range(3):
            events.begin_attempt(attempt)
    told = capsys.readouterr().err
    assert told.count("no more events are written, and the training goes on: [Errno 28] No sp") == 1


def test_of_a_line_that_finds_no_room_nothing_stays(tmp_path, capsys):
    path = tmp_path / "events.jsonl"
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    with events_to(str(path), Redactor([]), RankReports(), "r") as (events,):
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, usual[1]))
        try:
            events.begin_attempt(0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (
        "no more events are written, and the training goes on: [Errno 27] File too large"
        in capsys.readouterr().err
    )
    with events_to(str(path), Redactor([]), RankReports(), "r"):
        pass
    told = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert told == ["started", "started", "ended"]


def test_a_line_that_a_reader_takes_in_parts_is_whole(tmp_path):
    path = str(tmp_path / "events")
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path(path).read_bytes()))
    reader.start()
    with events_to(path, Redactor([]), RankReports(), "r") as (events,):
        events.slow_ranks("x" * (1 << 18))
    reader.join()
    told = [json.loads(line) for line in read[0].splitlines()]
    assert [len(one.get("message", "")) for one in told] == [0, 1 << 18, 0]


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    target = str(tmp_path / "missing/events.jsonl")
    with (
        pytest.raises(LaunchError, match=r"events is .*jsonl.*No such file.*folder that exists"),
        events_to(target, Redactor([]), RankReports(), "r"),
    ):
        pass
    with pytest.raises(TypeError, match="events is 3; it must be a path"):
        RunConfig(events=3)
