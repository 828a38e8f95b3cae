"""Names that others chose, before they become a part of a path here."""

from __future__ import annotations

import pytest

from sparkdl_runner.base.foreign_name import is_relative, is_run_id


@pytest.mark.parametrize("name", ["0123abcdef" * 3, "a", "0b9c1e4a-3f5d", "RUN"])
def test_a_run_is_called_by_letters_digits_and_hyphens(name: str) -> None:
    assert is_run_id(name)


@pytest.mark.parametrize(
    "name", ["", "..", "../../home/bob/train", "a/b", "a.b", "a\n", "a b", "é", "\u0661", "a" * 129]
)
def test_anything_else_is_no_run(name: str) -> None:
    assert not is_run_id(name)


@pytest.mark.parametrize("path", ["rank-0.log", "a/b.json", "..a/b..", "a b", "épreuve.json"])
def test_a_plain_path_stays_below_its_folder(path: str) -> None:
    assert is_relative(path)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/home/bob/x", "a//b", "../x", "a/../../x", "a/.", "a/", "c:x", "a\\b", "a\nb"),
        *("a\x1b[1m", "a\x9bb", "a\u2028b", "\ud800", "a" * 256, "a/" * 600 + "a"),
    ],
)
def test_a_path_that_may_lead_elsewhere_is_none(path: str) -> None:
    assert not is_relative(path)
