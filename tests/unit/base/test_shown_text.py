"""Text of ranks and servers on the driver's console: it controls no terminal and forges no line."""

from __future__ import annotations

import io
import re
import sys
import types
from pathlib import Path

import pytest

import sparkdl_runner
from sparkdl_runner.base.shown_text import line, lines, plain, tell, write
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


def test_a_page_has_the_text_without_colours() -> None:
    assert plain("\x1b[1;31mbad\x1b[m \x1b[2K\u202eknar\x1b]0;name\x07") == (
        "bad \\u202eknar\\x1b]0;name\\x07"
    )


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
    printing = re.compile(r"\b(print|write)\(\s*f?\"sparkdl_runner: ")
    found = {path.name for path in package.rglob("*.py") if printing.search(path.read_text())}
    assert found == {"shown_text.py"}


class Screen(io.StringIO):
    """A terminal, or a notebook's output, with all that was written in one call."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.calls: list[str] = []

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.calls.append(text)
        return super().write(text)


@pytest.fixture
def _with_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", types.ModuleType("pyspark"))
    for name in ("IPython", "dbruntime", "tqdm"):
        monkeypatch.delitem(sys.modules, name, raising=False)


BAR = "[Stage 0:>                        (0 + 2) / 2]\r"


def test_a_line_is_one_call_so_that_no_other_comes_into_it() -> None:
    screen = Screen(is_terminal=False)
    tell("told", screen)
    assert screen.calls == ["sparkdl_runner: told\n"]


@pytest.mark.usefixtures("_with_spark")
def test_on_a_terminal_a_line_takes_the_place_of_sparks_bar() -> None:
    screen = Screen(is_terminal=True)
    screen.write(BAR)
    write("[rank 0] a\n", screen)
    assert screen.calls[1:] == ["\x1b[K[rank 0] a\n"], "the rest of the line is erased"


@pytest.mark.usefixtures("_with_spark")
def test_in_a_notebook_a_line_on_stderr_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    screen = Screen(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", screen)
    screen.write(BAR)
    tell("told")
    *erased, last = screen.getvalue().split("\r")
    assert last == "sparkdl_runner: told\n"
    assert erased[-1] == " " * 80, "a cell knows no escape sequence"
    beside = Screen(is_terminal=False)
    write("[rank 0] a\n", beside)
    assert beside.calls == ["[rank 0] a\n"], "the bar is on stderr alone"


@pytest.mark.usefixtures("_with_spark")
def test_a_file_gets_the_line_alone() -> None:
    stream = Screen(is_terminal=False)
    write("[rank 0] a\n", stream)
    assert stream.calls == ["[rank 0] a\n"]


def test_a_bar_stays_below_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tqdm import tqdm

    screen = Screen(is_terminal=True)
    with tqdm(total=2, file=screen, desc="bar", leave=False, ncols=40) as bar:
        tell("told", screen)
        bar.refresh()
        seen = [one.rpartition("\r")[2] for one in screen.getvalue().split("\n")]
        assert seen[0].removeprefix("\x1b[K") == "sparkdl_runner: told"
        assert seen[1].startswith("bar:")
