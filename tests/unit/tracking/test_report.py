"""The report of a run says what happened, and nothing in it is taken for markup."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.tracking.report.description import description_of, may_replace
from sparkdl_runner.tracking.report.markdown import escaped
from sparkdl_runner.tracking.report.page import MAX_RANKS, write_page
from sparkdl_runner.tracking.report.performance import Counts
from sparkdl_runner.tracking.report.run_summary import AttemptRow, RunSummary
from sparkdl_runner.tracking.run.parameters_and_tags import tell_best, tell_parent

FAILED = {"error": "It <failed>.", "status": "FAILED"}


def counts(compute: float = 6.0) -> Counts:
    parts = {"data_wait": 1.0, "compute": compute, "communication": 9 - compute, "checkpoint": 0.0}
    return Counts(steps=100, samples=3200, running_seconds=10.0, seconds=parts)


def summary(**changes: Any) -> RunSummary:
    fields: dict[str, Any] = {
        "name": "eager-hawk",
        "run_id": "abc",
        "began_at": 0.0,
        "ended_at": 60.0,
        "attempts": [
            AttemptRow(
                number=0,
                began_at=0,
                ended_at=20,
                step=50,
                checkpoint_step=40,
                error="Rank 1 was <killed>\nmore",
            ),
            AttemptRow(number=1, began_at=21, ended_at=60, step=100),
        ],
        "totals": {0: counts(), 1: counts()},
        "hosts": {0: "a", 1: "<b>"},
        "num_ranks": "2",
        "num_hosts": "1",
        "metrics": {"loss": 0.25, "system/step_seconds/total": 0.1, "samples_per_second": 640.0},
    }
    return RunSummary(**{**fields, **changes})


def page(folder: Path, **changes: Any) -> str:
    write_page(summary(**changes), folder / "report")
    return (folder / "report" / "summary.html").read_text()


def test_skipped_images_are_told_in_the_sentence(tmp_path: Path) -> None:
    assert "skipped" not in page(tmp_path)
    text = page(tmp_path, metrics={"skipped_images": 1234.0})
    assert " 1,234 images did not decode and were skipped." in text


def test_saves_that_failed_are_a_line_of_the_page(tmp_path: Path) -> None:
    told = "2 saves failed. The checkpoint of step 7 was <not> written."
    line = '<p class="warning">Checkpoints: 2 saves failed. The checkpoint of step 7 was &lt;not'
    assert line in page(tmp_path, checkpoint_warning=told)
    assert 'class="warning"' not in page(tmp_path)


def test_what_ranks_logged_and_is_lost_is_a_line_of_the_page(tmp_path: Path) -> None:
    text = page(tmp_path, lost_entries="12 metrics", checkpoint_warning="1 save failed")
    assert '<p class="warning">Lost: 12 metrics</p>' in text
    assert text.count('class="warning"') == 2


def test_the_page_has_attempts_and_the_time_of_a_step_by_part_and_rank(tmp_path: Path) -> None:
    assert "torch 2.13" in page(tmp_path, versions="python 3.11, torch 2.13")
    text = page(tmp_path, name="<script>alert(1)</script>", totals={0: counts(), 1: counts(7.0)})
    assert "&lt;/script&gt;: finished</h1>" in text
    assert "2 ranks on 1 host, in 2 attempts." in text
    assert "Of their time: data wait 10%, compute 65%, communication 25%." in text
    assert "<td>50</td><td>step 40</td><td>Rank 1 was &lt;killed&gt;</td>" in text
    assert "<td>100</td><td>none</td><td>all ranks returned</td>" in text
    assert "Rank 1 on &lt;b&gt; is the slowest: without communication, it takes 80 ms" in text
    row = "<td>1</td><td>&lt;b&gt;</td><td>100</td><td>10 ms</td><td>70 ms</td><td>20 ms</td>"
    assert row in text
    assert '<i class="compute" style="width:70.00%"></i>' in text
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="', text), "it needs nothing from elsewhere"


def test_a_run_that_told_nothing_has_a_page_as_well(tmp_path: Path) -> None:
    text = page(tmp_path, totals={}, hosts={}, metrics={}, attempts=[], **FAILED)
    assert ": failed</h1>" in text
    assert "What ended it" in text
    assert "It &lt;failed&gt;." in text
    assert "Time of a step" not in text


def test_of_many_ranks_the_page_shows_the_slowest_first(tmp_path: Path) -> None:
    totals = {rank: counts(6 + rank / 1000) for rank in range(512)}
    text = page(tmp_path, totals=totals)
    ranks = re.findall(r"<tr><td>(\d+)</td><td>[^<]*</td><td>100</td>", text)
    assert ranks == [str(rank) for rank in range(511, 511 - MAX_RANKS, -1)]
    assert "<h2>Time of a step: the 32 slowest of 512 ranks</h2>" in text
    assert "Rank 511 is the slowest" in text


def test_the_slowest_rank_is_the_one_that_waits_least_for_the_others() -> None:
    assert summary(totals={0: counts()}).slowest_rank() == "", "there are no others"
    assert summary(totals={0: counts(), 1: Counts()}).slowest_rank() == "", "one made no step"
    ranks = {0: counts(5.0), 1: counts(7.0), 2: counts(6.0)}
    said = summary(totals=ranks, hosts={}).slowest_rank()
    assert said.startswith("Rank 1 is the slowest: ")
    assert said.endswith("takes 80 ms for a step, and the median of all ranks is 70 ms.")


def test_the_description_is_the_report_in_short_and_no_markup_of_others() -> None:
    text = description_of(summary())
    first, attempts, pace, *_ = text.split("\n\n")
    assert first == "loss **0.25**", "and nothing that ranks and hosts count"
    assert pace == "time **60 s** · last step **100** · samples/s **640**"
    assert "· goodput **91%** ·" in description_of(summary(metrics={"system/goodput": 0.91}))
    assert "\n\n2 ranks on 1 host, in 2 attempts. Of their time: data wait 10%, compute" in text
    assert attempts.splitlines() == [
        "- attempt 0, 20 s, to step 50: Rank 1 was &lt;killed&gt;",
        "- attempt 1, 39 s, to step 100: all ranks returned",
    ], "one sees without a scroll that it was restarted, and why"
    many = [AttemptRow(number=n, began_at=0, ended_at=1, error="|" * 10_000) for n in range(100)]
    assert len(description_of(summary(attempts=many))) < 5000
    only = summary(attempts=summary().attempts[1:])
    assert "- attempt" not in description_of(only), "it is said already"


def test_a_description_begins_with_why_the_run_ended_and_what_is_wrong_with_it() -> None:
    error = "Rank 1 of 2 on host h raised ValueError: a *bad* row.\n\nTraceback"
    text = description_of(summary(error=error, status="FAILED", lost_entries="12 metrics"))
    end, metrics, warning, _attempts, pace, *_ = text.split("\n\n")
    assert end == "**Failed: Rank 1 of 2 on host h raised ValueError: a \\*bad\\* row.**"
    assert (metrics, warning) == ("loss **0.25**", "Warning: 12 metrics")
    assert pace.startswith("time **60 s**")
    own = description_of(summary(function_run="0a1b"))
    assert own.startswith("What the function logged is in [a run that it made](#/runs/0a1b).\n\n")
    assert "made" not in description_of(summary(function_run="](javascript:1)"))
    asked = summary(stopped="asked for by a person", status="KILLED")
    assert description_of(asked).startswith("**Ended early: asked for by a person**\n\nloss")
    once = summary(metrics={}, attempts=summary().attempts[1:])
    assert description_of(once).startswith("time **60 s**"), "there is nothing else"
    assert len(description_of(summary(error="x" * 10_000, status="FAILED"))) < 2000


# What a browser or a reader of Markdown could take for its own, in every place of a text.
MARKUP = st.text(st.sampled_from("<>&\\`*_[]()|!#~\r\n\u2028 =aimg/:\"'"), max_size=30)


@given(MARKUP, MARKUP, MARKUP, MARKUP)
def test_no_value_of_others_is_markup_in_a_description(
    error: str, metric: str, ranks: str, use: str
) -> None:
    attempts = [AttemptRow(number=0, began_at=0, ended_at=20, error=f"<img {error}")]
    others = {"num_ranks": ranks, "num_hosts": f"</p>{ranks}", "time_use": f"<b>{use}"}
    text = description_of(
        summary(
            error=f"<b>{error}",
            status="FAILED",
            attempts=attempts,
            metrics={f"<i>{metric}": 1.0},
            **others,
        )
    )
    assert "<" not in text
    assert len(text.split("\n\n")) == 6, "no paragraph of others"
    note = escaped(f"[x](javascript:1){error}")
    assert not re.search(r"(?<!\\)(\\\\)*[`*_\[\]|]", note), "each sign of Markdown is escaped"


def test_the_name_of_a_run_is_no_markup_in_its_parents_description() -> None:
    told: dict[str, str] = {}
    parent = SimpleNamespace(data=SimpleNamespace(tags={}))
    client = SimpleNamespace(
        get_run=lambda _: parent, set_tag=lambda _, name, value: told.update({name: value})
    )
    info = SimpleNamespace(run_id="0a", run_name="<img src=x>](javascript:1)", experiment_id="1")
    tell_parent(client, "parent", SimpleNamespace(info=info))
    (note,) = (text for name, text in told.items() if name.endswith("content"))
    assert note.endswith("\n- [&lt;img src=x&gt;\\](javascript:1)](#/experiments/1/runs/0a)")


def test_a_search_begins_its_description_with_the_best_and_goes_on_with_its_trainings() -> None:
    tags: dict[str, str] = {}
    run = SimpleNamespace(data=SimpleNamespace(tags=tags))
    client = SimpleNamespace(
        get_run=lambda _: run, set_tag=lambda _, name, value: tags.update({name: value})
    )
    for number in (1, 2):
        info = SimpleNamespace(run_id=f"{number}", run_name=f"n{number}", experiment_id="1")
        tell_parent(client, "parent", SimpleNamespace(info=info))
        tell_best(client, "parent", f"loss 0.{number} with a*b")
    best, heading, *trainings = filter(None, tags["mlflow.note.content"].splitlines())
    assert best == "**Best: loss 0.2 with a\\*b**"
    assert heading == "Trainings of this run:"
    assert trainings == [f"- [n{n}](#/experiments/1/runs/{n})" for n in (1, 2)]
    tags["mlflow.note.content"] = "by hand"
    tell_best(client, "parent", "loss 0.1")
    assert tags["mlflow.note.content"] == "by hand"


def test_a_description_that_a_person_has_written_stays() -> None:
    assert may_replace("")
    assert may_replace(description_of(summary()))
    assert not may_replace("Tried with more warm-up.")
