"""What the driver makes of what it hears while a run goes on: MLflow is not asked."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.errors import LaunchError, RunCancelledError
from sparkdl_runner.tracking.run import tracked_run
from sparkdl_runner.tracking.run.heartbeat import Heartbeat
from sparkdl_runner.tracking.run.journal import Journal
from sparkdl_runner.tracking.run.opening.lease import Lease
from sparkdl_runner.tracking.run.run_end import status_of
from sparkdl_runner.tracking.run.tracked_run import TrackedRun
from sparkdl_runner.tracking.settings import Tracking


def listening(said: list[object], own: list[object]) -> SimpleNamespace:
    run = SimpleNamespace(
        state=SimpleNamespace(
            seen=SimpleNamespace(name="of the driver"),
            logged=lambda world, entries: None,
            add=lambda world, report: [],
        ),
        _log=said.append,
        _own=own,
        _journal=Journal({}, {}, Redactor()),
    )
    run._log_own = lambda: TrackedRun._log_own(run)
    return run


def test_parameters_of_the_function_come_before_our_own() -> None:
    for first in (["param", "lr", "0.1"], ["metric", "loss", 1.0, 0, 1, {}]):
        said: list[object] = []
        own: list[object] = [["param", "width", "2"]]
        run = listening(said, own)
        for entries in ([["tag", "a", "1"]], [first], [["param", "epochs", "3"]]):
            TrackedRun.logged(run, None, entries)
        assert said == [[["tag", "a", "1"]], [first], own, [["param", "epochs", "3"]]]


def test_the_name_that_rank_0_gave_the_run_last_is_its_name() -> None:
    said: list[object] = []
    run = listening(said, [])
    renamed = [["tag", "mlflow.runName", name] for name in ("first", "last")]
    for entries, name in (
        ([["param", "a", "1"]], "of the driver"),
        (renamed[:1], "first"),
        (renamed, "last"),
    ):
        TrackedRun.logged(run, None, entries)
        assert run.state.seen.name == name
    assert said == [[["param", "a", "1"]], renamed[:1], renamed]


def test_what_ranks_logged_and_is_lost_is_counted_in_a_tag_and_told() -> None:
    said: list[object] = []
    run = listening(said, [])
    run._lost, run._problems = 0, []
    run._count_lost = partial(TrackedRun._count_lost, run)
    TrackedRun.progress(run, None, {"dropped": 1000})
    TrackedRun.unsent(run, SimpleNamespace(rank=0), 2)
    told = "{} metrics, parameters and tags that ranks had logged"
    assert said == [
        [["tag", "sparkdl_runner.lost_entries", told.format(count)]] for count in ("1,000", "1,002")
    ]
    assert "raise RunConfig.shutdown_grace_seconds" in run._problems[0]


def test_a_part_of_a_file_that_cannot_be_kept_is_told_and_the_training_goes_on() -> None:
    def full(*_: object, is_first: bool) -> None:
        raise OSError("No space left on device")

    run = SimpleNamespace(_folder=SimpleNamespace(keep_part=full), _problems=[])
    TrackedRun.file_part(run, SimpleNamespace(rank=3), "rank-3.log", b"x", is_first=True)
    assert run._problems == [
        "a part of rank-3.log of rank 3 could not be kept: No space left on device"
    ]


@pytest.mark.parametrize("place", ["terminal", "cell", "cell without HTML"])
@pytest.mark.parametrize("address", ["http://server/#/runs/1?a&b", "1 in sqlite:///mlflow.db"])
def test_a_page_of_the_run_is_a_link_in_a_notebook(
    place: str, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[dict[str, str]] = []

    def show(content: dict[str, str]) -> None:
        if place == "cell without HTML":
            raise OSError
        shown.append(content)

    monkeypatch.setattr(tracked_run, "in_notebook", lambda: place != "terminal")
    monkeypatch.setattr(tracked_run, "show_in_cell", show)
    run = SimpleNamespace(
        _opened=SimpleNamespace(address=lambda redact, host: address),
        _redact=str,
        _credentials={},
        state=SimpleNamespace(seen=SimpleNamespace(name="<b>")),
    )
    TrackedRun._show_address(run)
    line = f"MLflow run <b>: {address}"
    if place == "cell" and address.startswith("http"):
        page = "http://server/#/runs/1?a&amp;b"
        link = f'MLflow run <a href="{page}" target="_blank">&lt;b&gt;</a>'
        assert shown == [{"text/html": link, "text/plain": line}]
        assert capsys.readouterr().out == ""
    else:
        assert shown == []
        assert capsys.readouterr().out == f"sparkdl_runner: {line}\n"


def test_a_trouble_with_mlflow_is_shown_once_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    since = iter([None, 5.0, 5.0, None, 9.0])

    class Stumbling:
        trouble = "503"

        @property
        def troubled_since(self) -> float | None:
            return next(since)

    run = SimpleNamespace(_redact=str)
    heartbeat = Heartbeat(
        SimpleNamespace(),
        SimpleNamespace(),
        Lease(),
        Stumbling(),
        log=lambda _: None,
        report_trouble=lambda trouble: TrackedRun._report_trouble(run, trouble),
        keep=lambda: None,
    )
    stops = iter([False] * 5 + [True])
    heartbeat._stopped = SimpleNamespace(wait=lambda _: next(stops))
    heartbeat._run()
    assert capsys.readouterr().out.count("refuses or does not answer (503)") == 2


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (OSError("No space left"), LaunchError, r"keep metrics .*: No space left\. Make room"),
        (RuntimeError("of our own"), RuntimeError, "^of our own$"),
    ],
)
def test_a_run_that_was_opened_and_cannot_be_kept_has_failed(
    raised: Exception, expected: type[Exception], text: str
) -> None:
    class Kept(TrackedRun):
        def __init__(self, *_: object) -> None:
            raise raised

    told: list[str] = []
    opened = SimpleNamespace(set_status=told.append)
    named = SimpleNamespace(run_id="a", lease=None, open=lambda: opened)
    with pytest.raises(expected, match=text):
        Kept.open(Tracking(experiment="e"), named=named)  # type: ignore[arg-type]
    assert told == ["FAILED"]


@pytest.mark.parametrize(
    ("error", "stopped", "status"),
    [
        (None, "", "FINISHED"),
        (None, "enough", "KILLED"),
        (LaunchError("no slot"), "", "FAILED"),
        (LaunchError("no slot"), "enough", "FAILED"),
        (RunCancelledError("cancelled"), "", "KILLED"),
        (KeyboardInterrupt(), "enough", "KILLED"),
    ],
)
def test_the_status_says_whether_it_was_ended_by_somebodys_wish(error, stopped, status) -> None:
    assert status_of(error, stopped) == status
