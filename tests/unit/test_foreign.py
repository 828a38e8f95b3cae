"""How the results of other people's tests are read and compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_a_test_of_which_a_part_failed_has_failed(tmp_path):
    (tmp_path / "rank-0").write_text("begun a\nfailed a\npassed a\npassed a\n")
    assert results.read(tmp_path, 1) == {"a": "failed"}


def test_a_rank_that_came_to_no_test_leaves_all_unfinished(tmp_path):
    (tmp_path / "rank-1").write_text("passed a\n")
    found = results.read(tmp_path, 2)
    assert found == {"a": "unfinished"}
    assert results.summary(found) == "1 unfinished"
    assert results.summary({}) == "none run"


def test_another_start_leaves_out_what_ended_and_what_began_twice(tmp_path):
    (tmp_path / "rank-0").write_text("begun a\npassed a\nbegun b\nfailed b\nbegun c\nbegun d\n")
    (tmp_path / "rank-1").write_text("begun a\npassed a\nbegun b\nbegun c\npassed c\n")
    assert results.leave_out(tmp_path, 2) == 7
    # b failed in one rank, which decides; c ended in one, and d began once: both are tried again.
    assert (tmp_path / results.LEFT_OUT).read_text() == "a\nb\n"
    (tmp_path / "rank-1").open("a").write("begun c\n")
    assert results.leave_out(tmp_path, 2) == 8
    assert (tmp_path / results.LEFT_OUT).read_text() == "a\nb\nc\n"


def test_a_script_ends_as_python_would_say(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    call = [sys.executable, "-m", "foreign.ranks", str(tmp_path), "script", str(script)]
    here = Path(results.__file__).parents[1]
    for code, outcome in ("0", "passed"), ("3", "failed"):
        subprocess.run([*call, code], cwd=here, capture_output=True)
        assert results.read(tmp_path, 1) == {"script.py": outcome}


def test_only_what_passes_elsewhere_can_be_worse_here():
    ours = {"a": "passed", "b": "failed", "c": "failed", "e": "skipped"}
    theirs = {"a": "passed", "b": "passed", "c": "failed", "d": "passed", "e": "passed"}
    assert results.worse(ours, theirs) == {"b": "failed", "d": "not run", "e": "skipped"}
