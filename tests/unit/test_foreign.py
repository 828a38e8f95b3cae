"""How the results of other people's tests are read and compared."""

from __future__ import annotations

from foreign import results


def test_a_test_counts_once_over_all_ranks(tmp_path):
    (tmp_path / "rank-0").write_text("passed a\npassed b\nskipped c\npassed d\nskipped e\n")
    (tmp_path / "rank-1").write_text("passed a\nfailed b\nskipped c\nskipped e\n")
    assert results.read(tmp_path, 2) == {
        "a": "passed",
        "b": "failed",
        "c": "skipped",
        "d": "unfinished",
        "e": "skipped",
    }


def test_a_rank_that_came_to_no_test_leaves_all_unfinished(tmp_path):
    (tmp_path / "rank-1").write_text("passed a\n")
    found = results.read(tmp_path, 2)
    assert found == {"a": "unfinished"}
    assert results.summary(found) == "1 unfinished"
    assert results.summary({}) == "none run"


def test_only_what_passes_elsewhere_can_be_worse_here():
    ours = {"a": "passed", "b": "failed", "c": "failed", "e": "skipped"}
    theirs = {"a": "passed", "b": "passed", "c": "failed", "d": "passed", "e": "passed"}
    lines = results.worse(ours, theirs)
    assert [line.partition(":")[0] for line in lines] == ["b", "d", "e"]
    assert lines[1].endswith("not run here")
