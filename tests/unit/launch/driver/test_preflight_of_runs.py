"""A preflight before a training: what is told, who is kept out, and what does not end the run."""

from __future__ import annotations

import pytest

from sparkdl_runner import RunConfig
from sparkdl_runner.errors import LaunchError, RunCancelledError, RunnerError
from sparkdl_runner.launch.driver import preflight
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.rank.reports import Reports

HEALTHY = {"matrices": 99e9}


def rank(number, rates):
    place = {"rank": number, "host_rank": number, "place": f"h{number}", "faults": [], "same": {}}
    return {**place, "rates": rates, "started": 5.0, "ended": 6.0, "seconds": 1.0}


class Launcher:
    """Whose rank 1 is slow until its place is kept out."""

    is_single_host, application_id = False, None

    def __init__(self, refusal="", error=None):
        self.refusal, self.error, self.kept_out, self.attempts = refusal, error, [], []

    def run(self, attempt, reports, stop):
        self.attempts.append(attempt)
        if self.error is not None:
            raise self.error
        slow = {"matrices": 20e9} if not self.kept_out or self.refusal else HEALTHY
        return [rank(0, HEALTHY), rank(1, slow)]

    def keep_out(self, ranks):
        self.kept_out.append(list(ranks))
        return self.refusal


class Taker(Reports):
    def __init__(self):
        self.reports = []

    def preflight(self, report):
        self.reports.append(report)


@pytest.fixture
def before(monkeypatch):
    monkeypatch.setattr(preflight, "result_of", lambda outcomes, run: outcomes)
    monkeypatch.setattr(preflight.time, "time", lambda: 5.5)

    def run(launcher, earlier=(), **settings):
        taker = Taker()
        config = RunConfig(preflight="quick", **settings)
        attempt = AttemptSpec(backend="torch", function=b"f", config=config, run="r")
        preflight.before_training(launcher, attempt, [taker], StopRequest(), earlier)
        return taker.reports

    return run


def test_a_slow_rank_is_told_and_stays(before, capsys):
    launcher = Launcher()
    (report,) = before(launcher)
    text = "slow: matrices 20 GFLOP/s, 99 GFLOP/s elsewhere"
    assert report["findings"] == [([1], text, True)]
    assert report["rates"] == {"h0": 99e9, "h1": 20e9}
    told = capsys.readouterr().err
    assert (
        "preflight (quick, 1.0 s): 2 ranks, matrices 59.5 GFLOP/s, no collective, no GPU.\n" in told
    )
    assert f"preflight: rank 1 on h1: {text}.\n" in told
    assert launcher.kept_out == []


def test_the_place_of_a_slow_rank_is_kept_out_and_what_comes_instead_is_measured(before, capsys):
    launcher = Launcher()
    first, second = before(launcher, preflight_excludes=True)
    assert launcher.kept_out == [[1]]
    assert (first["kept_out"], second["kept_out"], second["findings"]) == ([1], [], [])
    assert "the executors of these ranks get no more tasks." in capsys.readouterr().err


def test_where_none_can_be_kept_out_the_reason_is_told(before, capsys):
    (report,) = before(Launcher("all ranks run on this host"), preflight_excludes=True)
    assert report["kept_out"] == []
    told = "the executors of these ranks stay: all ranks run on this host."
    assert told in capsys.readouterr().err


def test_a_preflight_that_fails_does_not_end_the_run(before, capsys):
    assert before(Launcher(error=RunnerError("Rank 1 died.\nmore"))) == []
    told = "preflight was not finished, and the training starts: Rank 1 died.\n"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("kind", [LaunchError, RunCancelledError])
def test_a_run_that_cannot_start_or_is_cancelled_ends(before, kind):
    with pytest.raises(kind):
        before(Launcher(error=kind("x")))


@pytest.mark.parametrize(("chosen", "seconds"), [(None, 60.0), (0, 0.0)])
def test_its_workers_leave_spares_to_the_training_unless_none_are_wanted(before, chosen, seconds):
    launcher = Launcher()
    before(launcher, spare_seconds=chosen)
    assert launcher.attempts[0].spare_seconds == seconds
    assert launcher.attempts[0].run == "r-preflight"


def test_settings_that_fit_nothing_are_refused():
    with pytest.raises(ValueError, match="preflight is 'slow'; it must be one of 'quick'"):
        RunConfig(preflight="slow")
    with pytest.raises(ValueError, match="preflight_excludes is True and preflight is None"):
        RunConfig(preflight_excludes=True)
