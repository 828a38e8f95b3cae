"""The page of a run says what happened, and nothing on it is taken for markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkdl_runner.tracking.report import plots
from sparkdl_runner.tracking.report.note import may_replace, note
from sparkdl_runner.tracking.report.page import Attempt, Story
from sparkdl_runner.tracking.report.performance import Counts


def story(**changes: object) -> Story:
    counts = Counts(
        steps=100,
        samples=3200,
        running_seconds=10.0,
        seconds={"data_wait": 1.0, "compute": 6.0, "communication": 3.0, "checkpoint": 0.0},
    )
    fields: dict[str, object] = {
        "name": "eager-hawk",
        "run_id": "abc",
        "began_at": 0.0,
        "ended_at": 60.0,
        "attempts": [
            Attempt(number=0, began_at=0, ended_at=20, step=50, error="Rank 1 was <killed>\nmore"),
            Attempt(number=1, began_at=21, ended_at=60, step=100),
        ],
        "totals": {0: counts, 1: counts},
        "params": {"world_size": "2", "num_hosts": "1", "note": "<script>alert(1)</script>"},
        "metrics": {"loss": 0.25, "accuracy": 0.97},
        "histories": {
            "loss": [(step, 1 / step) for step in range(1, 101)],
            "accuracy": [(100, 0.97)],
            "samples_per_second": [(50, 640.0), (100, 650.0)],
        },
    }
    return Story(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_page_tells_the_story(tmp_path: Path) -> None:
    story().write(tmp_path)
    page = (tmp_path / "summary.html").read_text()
    assert "2 ranks on 1 host, in 2 attempts." in page
    assert "Of their time: data wait 10%, compute 60%, communication 30%, checkpoint 0%." in page
    assert "Rank 1 was &lt;killed&gt;" in page
    assert "all ranks returned" in page
    assert "<script" not in page
    links = set(re.findall(r'(?:src|href)="([^#"][^"]*)"', page))
    assert not links, "it needs nothing from elsewhere"
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"loss.png", "metrics.png", "throughput.png", "breakdown.png"}
    assert page.count("<svg") == 4


def test_a_run_that_told_nothing_has_a_page_as_well(tmp_path: Path) -> None:
    empty = story(totals={}, metrics={}, histories={}, attempts=[], params={}, error="It <failed>.")
    empty.write(tmp_path)
    page = (tmp_path / "summary.html").read_text()
    assert "What ended it" in page
    assert "It &lt;failed&gt;." in page


def test_the_description_is_the_story_in_short_and_no_markup_of_others() -> None:
    text = note(story())
    assert text.startswith(
        "2 ranks on 1 host, in 2 attempts. Of their time: data wait 10%, compute 60%"
    )
    assert "\n\ntime **60 s** · last step **100** · samples/s **640** · loss **0.25**" in text
    assert "\n- attempt 0, 20 s, to step 50: Rank 1 was \\<killed\\>\n" in text
    assert "\n- attempt 1, 39 s, to step 100: all ranks returned\n" in text
    many = [Attempt(number=n, began_at=0, ended_at=1, error="|" * 10_000) for n in range(100)]
    assert len(note(story(attempts=many))) < 5000
    assert "- attempt" not in note(story(attempts=story().attempts[1:])), "it is said already"


def test_a_description_that_a_person_has_written_stays() -> None:
    assert may_replace("")
    assert may_replace(note(story()))
    assert not may_replace("Tried with more warm-up.")


def test_what_ranks_and_hosts_count_is_no_headline(tmp_path: Path) -> None:
    metrics = {"loss": 0.25, "system/step_seconds/total": 0.1}
    story(metrics=metrics, histories={}, totals={}).write(tmp_path)  # Without plots it is quick.
    page = (tmp_path / "summary.html").read_text()
    assert "<span>loss</span>" in page
    assert "<span>system/step_seconds/total</span>" not in page
    assert "<th>system/step_seconds/total</th>" in page


@pytest.mark.parametrize("count", [1, 1500, 1501, 100_000])
def test_long_curves_are_thinned_and_keep_their_end(count: int) -> None:
    points = [(step, float(step)) for step in range(count)]
    shown = plots.thinned(points)
    assert len(shown) <= plots.MAX_POINTS + 1
    assert shown[0] == points[0]
    assert shown[-1] == points[-1]
