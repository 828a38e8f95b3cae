"""``--json``: every command has it, its document is the page's, and nothing else is printed."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from json_documents import document_of, documented
from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.cli import _COMMANDS, build_horovod, json_document, main
from sparkdl_runner.cli.command_line import Parser, guarded
from sparkdl_runner.doctor import command as doctor_command
from sparkdl_runner.doctor.findings.finding import problem
from sparkdl_runner.doctor.report import Report
from sparkdl_runner.errors import WorkerDiedError
from sparkdl_runner.jobs import convert, score, train, tune
from sparkdl_runner.jobs.parsing import command as parsing_command
from sparkdl_runner.jobs.training.phases import Phases
from sparkdl_runner.tracking.report.events import events_to
from sparkdl_runner.tracking.run.rank_reports import RankReports


def leaves(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, Any]]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for word, one in action.choices.items():
            yield from leaves(one, f"{name} {word}".strip())
    if not below:
        yield name, parser


def commands() -> dict[str, Any]:
    """The parsers of all commands that can be run."""
    parser = Parser(prog="sparkdl-runner")
    subparsers = parser.add_subparsers()
    for module, _ in _COMMANDS.values():
        of_it = importlib.import_module(f"sparkdl_runner.{module}")
        getattr(of_it, "JOB", of_it).add_parser(subparsers)
    json_document.add_flag(parser)
    return dict(leaves(parser, ""))


def test_every_command_has_the_flag_and_a_row_of_the_page():
    found = commands()
    assert found.keys() == documented().keys()
    for parser in found.values():
        assert "--json" in parser._option_string_actions


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path / "steps", asynchronous=False) as manager:
        manager.save(3, extra={"a": 1}, metrics={"loss": float("nan")})
    return tmp_path / "steps"


def test_documents_of_checkpoints_have_the_fields_of_the_page(checkpoints, capsys):
    assert main(["checkpoints", "ls", "--json", str(checkpoints)]) == 0
    listed = document_of("checkpoints ls", capsys.readouterr().out)
    (one,) = listed["checkpoints"]
    assert one["checkpoint"] == "step-3/attempt-0"
    assert one["metrics"] == {"loss": "nan"}
    assert main(["checkpoints", "verify", str(checkpoints), "--json"]) == 0
    whole = document_of("checkpoints verify", capsys.readouterr().out)
    assert whole["problems"] == {"step-3/attempt-0": []}
    (checkpoints / "step-3" / "attempt-0" / "manifest.json").write_text("{")
    assert main(["checkpoints", "verify", str(checkpoints), "--json"]) == 1
    told = document_of("checkpoints verify", capsys.readouterr().out)
    assert told["exit_code"] == 1
    assert len(told["problems"]["step-3/attempt-0"]) == 1


def test_documents_of_doctor_build_horovod_where_and_deliver(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    finding = problem("2 slots.", expected="4 or more", advice="Ask for 2.")
    report = Report(findings=[finding], num_proc=2, seconds=1.0)
    monkeypatch.setattr(doctor_command, "examine", lambda question: report)
    done = subprocess.CompletedProcess([], 3, stdout="/w/horovod.whl\n")
    monkeypatch.setattr(build_horovod.subprocess, "run", lambda *_, **__: done)
    calls = {
        "doctor": (1, ["doctor", "--json"]),
        "build-horovod": (3, ["build-horovod", "--wheel-only", "--json"]),
        "where": (0, ["where", "--json", "jobs/train.py"]),
        "deliver": (0, ["deliver", "--json"]),
    }
    for name, (code, arguments) in calls.items():
        assert main(arguments) == code
        told = document_of(name, capsys.readouterr().out)
        assert (told["exit_code"], told["command"]) == (code, name)


@pytest.mark.parametrize(
    "job", [train.JOB, tune.JOB, convert.JOB, score.JOB], ids=lambda job: job.name
)
def test_a_job_of_a_file_takes_the_flag_too(job, monkeypatch, capsys):
    monkeypatch.setattr(parsing_command, "load", lambda *_: SimpleNamespace())
    monkeypatch.setattr(parsing_command, "_quieten_libraries", lambda: None)
    monkeypatch.setitem(vars(job), "run", lambda settings: print("for people") or {"rows": 3})
    assert parsing_command.main(job, ["--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["command"], told["rows"], told["exit_code"]) == (job.name, 3, 0)


def test_events_on_standard_output_have_it_alone_and_the_document_is_after_them(
    monkeypatch, capsys, tmp_path
):
    def trained(settings: Any) -> tuple[int, None, Phases]:
        print("for people")
        with events_to(settings.events, Redactor([]), RankReports(), "r"):
            return 3, None, Phases()

    monkeypatch.setattr(train, "train", trained)
    call = ["run", "module:function", "--np", "-1", "--events"]
    assert main([*call, "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["started", "ended"]
    assert main([*call, "-", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert document_of("run", last)["returned"] == 3
    assert main([*call, str(tmp_path / "events"), "--json"]) == 0
    printed = capsys.readouterr()
    assert document_of("run", printed.out)["run_id"] is None
    assert printed.err == "for people\n"
    assert len((tmp_path / "events").read_text().splitlines()) == 2


def test_an_error_is_a_document_and_keeps_its_exit_code(capsys):
    assert main(["where", "jobs/trian.py", "--json"]) == 2
    told = document_of("where", capsys.readouterr().out)
    assert told["error"]["type"] == "ConfigError"
    assert "did you mean 'jobs/train.py'?" in told["error"]["message"]
    assert main(["no-such-command", "--json"]) == 2
    assert document_of("", capsys.readouterr().out)["exit_code"] == 2
    died = WorkerDiedError("Rank 1 died.", rank=1, host="h", attempt=0, output_tail=())

    def raise_(error: BaseException) -> Any:
        raise error

    assert guarded("sparkdl-runner run", lambda: raise_(died), ["--json"]) == 1
    assert document_of("", capsys.readouterr().out)["error"] == {
        "type": "WorkerDiedError",
        "message": "Rank 1 died.",
        "rank": 1,
        "host": "h",
    }
    with pytest.raises(ZeroDivisionError):
        guarded("sparkdl-runner run", lambda: raise_(ZeroDivisionError("a defect")), ["--json"])
    assert document_of("", capsys.readouterr().out)["error"]["type"] == "ZeroDivisionError"
    assert guarded("sparkdl-runner run", lambda: raise_(KeyboardInterrupt()), ["--json"]) == 130
    assert (
        document_of("", capsys.readouterr().out)["error"]["message"]
        == "interrupted; all ranks are gone."
    )
    assert guarded("run", dict, ["script.py", "--", "--json"]) == 0
    assert not capsys.readouterr().out, "the flag is the script's"


PRINTS = """
import os, subprocess, sys
from sparkdl_runner.base.standard_output import for_programs, kept_for_programs
print("before", flush=True)
with kept_for_programs(), kept_for_programs():
    print("of Python", flush=True)
    os.write(1, b"of a library\\n")
    subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
    print("for a program", file=for_programs(), flush=True)
print("after", flush=True)
assert for_programs() is sys.stdout
"""


def test_what_others_print_goes_to_standard_error_and_comes_back_afterwards():
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["before", "for a program", "after"]
    assert done.stderr.splitlines() == ["of Python", "of a library", "of a child"]
