"""Each report of a rank reaches every receiver."""

from __future__ import annotations

from types import SimpleNamespace

from sparkdl_runner.rank.reports import AllReports


def test_a_report_that_is_not_understood_is_said_once_and_others_hear_all(capsys):
    def stumble(world, values):
        raise KeyError(values["at"])

    heard = []
    listening = SimpleNamespace(host_metrics=lambda world, values: heard.append(values["at"]))
    reports = AllReports([SimpleNamespace(host_metrics=stumble), listening])
    for at in (1, 2):
        reports.host_metrics(None, {"at": at})
    assert heard == [1, 2]
    assert capsys.readouterr().err == (
        "sparkdl_runner: a report of the ranks was not understood: KeyError(1)\n"
    )
