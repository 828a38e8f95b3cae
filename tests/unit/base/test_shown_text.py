"""Text of ranks and servers on the driver's console: it controls no terminal and forges no line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

import sparkdl_runner
from sparkdl_runner.base.shown_text import line, lines, tell
from sparkdl_runner.errors import LaunchError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss 0.5 \u00e9 \u4e2d \U0001f600\tb", "loss 0.5 \u00e9 \u4e2d \U0001f600\tb"),
        ("a\r[rank 1] b", "a\\r[rank 1] b"),
        ("a\n[rank 1] b", "a\\n[rank 1] b"),
        ("\x1b]0;name\x07", "\\x1b]0;name\\x07"),
        ("\x1b]52;c;cm0=\x1b\\", "\\x1b]52;c;cm0=\\x1b\\"),
        ("\x9b2J \x85 \u2028 \u2029", "\\x9b2J \\x85 \\u2028 \\u2029"),
        ("\u202eknar\u202c", "\\u202eknar\\u202c"),
        ("\x00\x08\x7f\x0b\x0c", "\\x00\\x08\\x7f\\x0b\\x0c"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert line(text) == shown
    assert line(text, colours=True) == shown


def test_colours_stay_where_they_are_asked_for_and_end_with_the_line() -> None:
    text = "\x1b[1;31mbad\x1b[m \x1b[38;5;200mpink"
    assert line(text, colours=True) == f"{text}\x1b[0m"
    assert line(text) == "\\x1b[1;31mbad\\x1b[m \\x1b[38;5;200mpink"
    hidden = "\x1b[8mconcealed\x1b[5mblinks"
    assert line(hidden, colours=True) == "\\x1b[8mconcealed\\x1b[5mblinks"


def test_of_a_progress_bar_the_text_is_left() -> None:
    assert line("\x1b[A\x1b[K 10%|#    | 1/10 [00:01]\x1b[1B", colours=True) == (
        " 10%|#    | 1/10 [00:01]"
    )
    assert line("\x1b[\x1b[KA", colours=True) == "\\x1b[A", "nothing new comes of what is left out"


def test_no_line_of_a_text_passes_for_a_ranks_or_ours() -> None:
    assert lines("a\n[rank 1] b\r\nsparkdl_runner: c\n d\r[rank 2] e") == (
        "a\n  [rank 1] b\n  sparkdl_runner: c\n d\\r[rank 2] e"
    )


def test_errors_and_messages_are_shown_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(LaunchError("x\x1b[2J\n[rank 1] y")) == "x\\x1b[2J\n  [rank 1] y"
    tell("x\x1b[2J\n[rank 1] y")
    assert capsys.readouterr().err == "sparkdl_runner: x\\x1b[2J\n  [rank 1] y\n"
    closed = io.StringIO()
    closed.close()
    tell("lost", closed)


def test_nothing_else_prints_messages_of_ours() -> None:
    package = Path(next(iter(sparkdl_runner.__path__)))
    printing = re.compile(r"\bprint\(\s*f?\"sparkdl_runner: ")
    found = {path.name for path in package.rglob("*.py") if printing.search(path.read_text())}
    assert found == {"shown_text.py"}
