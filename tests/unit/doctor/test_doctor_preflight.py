"""What the doctor makes of a preflight, and that it measures only if it was asked."""

from __future__ import annotations

from sparkdl_runner.doctor import preflight
from sparkdl_runner.doctor.findings.finding import NOT_CHECKED, OK, WARNING
from sparkdl_runner.doctor.question import Question

RANKS = [{"place": "a"}, {"place": "b"}]


def test_nothing_is_measured_that_was_not_asked_for():
    (finding,) = preflight.measure(Question(), "local[2]")
    assert finding.status == NOT_CHECKED
    assert "doctor --preflight" in finding.advice


def test_hosts_that_are_alike_are_told_with_their_rates():
    lines = ["preflight (quick, 1.4 s): 2 ranks, matrices 50 GFLOP/s."]
    (finding,) = preflight.findings_of({"findings": [], "lines": lines, "ranks": RANKS})
    assert (finding.status, finding.found) == (OK, "2 ranks, matrices 50 GFLOP/s.")


def test_each_slow_or_odd_host_is_a_warning_that_names_it():
    found = [[[1], "slow: matrices 25 GFLOP/s, 50 elsewhere", True], [[0], "torch 2.9", False]]
    slow, odd = preflight.findings_of({"findings": found, "lines": ["x"], "ranks": RANKS})
    assert (slow.status, slow.found) == (WARNING, "b: slow: matrices 25 GFLOP/s, 50 elsewhere")
    assert "preflight_excludes" in slow.advice
    assert odd.found == "a: torch 2.9"
    assert "alike" in odd.advice


def test_ranks_that_could_not_measure_are_told_in_the_commands_words():
    for error in ({"message": "2 ranks need 2 task slots"}, "it died of SIGKILL"):
        (finding,) = preflight.findings_of({"error": error})
        assert finding.status == NOT_CHECKED
        assert "2 task slots" in finding.found or "SIGKILL" in finding.found
