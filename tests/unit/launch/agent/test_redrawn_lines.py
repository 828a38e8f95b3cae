"""Of a line that is drawn again in place, the last state counts."""

from __future__ import annotations

import pytest

from sparkdl_runner.launch.agent.redrawn_lines import (
    current_state,
    last_state,
    last_states,
    split_finished,
)


@pytest.mark.parametrize(
    ("line", "seen", "kept"),
    [
        (b"plain", b"plain", b"plain"),
        (b"10%\r50%", b"50%", b"50%"),
        (b"\r10%\r", b"10%", b"10%"),
        (b"\r10%\r    \r", b"", b"10%"),  # tqdm erases a bar so, before it writes something else.
        (b"\r10%\r    \rtold", b"told", b"told"),
        (b"\r  \r", b"", b""),
    ],
)
def test_an_erased_state_is_not_seen_and_yet_kept(line: bytes, seen: bytes, kept: bytes) -> None:
    assert current_state(line) == seen
    assert last_state(line) == kept


def test_each_line_has_its_own() -> None:
    assert last_states(b"a\r\nb\rc\n\nd") == b"a\nc\n\nd"


@pytest.mark.parametrize(
    ("text", "finished", "rest"),
    [
        (b"one\ntwo\nth", b"one\ntwo\n", b"th"),
        (b"one\n\n", b"one\n\n", b""),
        (b"one\r\n", b"one\r\n", b""),  # A line's end on Windows is no bar.
        # The way to a bar below, or the end of this one: what follows will tell.
        (b"one\n\r10%\n", b"one\n", b"\r10%\n"),
        (b"\r10%\n\n", b"", b"\r10%\n\n"),
        (b"\r10%\n\r3", b"", b"\r10%\n\r3"),
        (b"\r10%\ntext", b"\r10%\n", b"text"),
        (b"\r10%\n\r3%\x1b[A", b"", b"\r10%\r\r3%"),
        (b"\r10%\n\n\r3%\x1b[A\x1b[A", b"", b"\r10%\r\r3%"),
        (b"one\n\n\r3%\x1b[A", b"one\n", b"\r\r3%"),
    ],
)
def test_a_bar_is_not_finished_by_one_below_it(text: bytes, finished: bytes, rest: bytes) -> None:
    assert split_finished(text, is_quiet=False) == (finished, rest)


def test_a_line_break_that_nothing_follows_finishes_a_bar() -> None:
    assert split_finished(b"\r10%\n", is_quiet=True) == (b"\r10%\n", b"")
