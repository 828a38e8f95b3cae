"""Text that ranks, servers and other drivers sent, as a console may show it.

A carriage return lets a line overwrite what is before it, and escape sequences clear the screen,
name the window or fill the clipboard. They are shown as Python writes them, ``\\x1b[2J``.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TextIO

from sparkdl_runner.base.notebook import in_notebook

# Also what ends a line for some readers alone, what lets text run backwards, and halves of pairs,
# which JSON may hold and no stream takes.
_CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_COLOUR = r"\x1b\[(?:[0-4]|2[234]|39|49|[34][0-7]|9[0-7]|10[0-7]|[34]8;5;\d{1,3}|[;]){0,16}m"
# The moves of a progress bar, which would be read as noise. Without them its text is left.
_MOVE = r"\x1b\[[0-9;]{0,16}[A-HJK]"
_RESET = "\x1b[0m"
_UNSAFE = re.compile(f"({_CONTROL})")
_UNSAFE_BESIDE_COLOURS = re.compile(f"({_COLOUR})|({_MOVE})|({_CONTROL})")
# A line that would pass for another rank's, or for one of ours.
_FORGED = re.compile(r"(?<=\n)(?=\[rank |sparkdl_runner: )")


def line(text: str, *, colours: bool = False) -> str:
    """One line, with all control characters but the tab escaped, the end of a line too.

    Args:
        text: Of any origin.
        colours: Whether plain colours stay, up to the end of the line; the moves of progress bars
            are left out.
    """
    return _escaped(text, colours=colours).replace("\n", "\\n")


def plain(text: str) -> str:
    """One line for where there are no colours: without them, and without moves."""
    return line(re.sub(f"{_COLOUR}|{_MOVE}", "", text))


def lines(text: str) -> str:
    """The same of a text of several lines, none of which begins as the lines of ranks do."""
    return _FORGED.sub("  ", _escaped(text.replace("\r\n", "\n")))


def tell(text: str, stream: TextIO | None = None) -> None:
    """Prints a message of the package's, on stderr by default.

    It does not raise: a stream that is closed, or gone, must not end a training.
    """
    with suppress(OSError, ValueError):
        write(f"sparkdl_runner: {lines(text)}\n", stream or sys.stderr)


def write(text: str, stream: TextIO) -> None:
    """Writes whole lines, in one call so that others' do not run into them.

    On a screen they come above progress bars, and Spark's bar leaves nothing in them.

    Raises:
        OSError: The stream is gone.
        ValueError: It is closed, or has no such characters.
    """
    is_terminal = hasattr(stream, "isatty") and bool(stream.isatty())
    is_cell = not is_terminal and in_notebook()
    if "pyspark" in sys.modules:
        on_cells_stderr = is_cell and stream is sys.stderr
        text = _over_sparks_bar(is_terminal=is_terminal, on_cells_stderr=on_cells_stderr) + text
    with _above_bars(stream) if is_terminal or is_cell else nullcontext():
        stream.write(text)
        stream.flush()


def _over_sparks_bar(*, is_terminal: bool, on_cells_stderr: bool) -> str:
    """What removes Spark's bar (``[Stage 0:>``), which the cursor is at the beginning of.

    Its JVM draws it on stderr, and tells nobody.
    """
    if is_terminal:
        return "\x1b[K"
    if not on_cells_stderr:
        return ""
    columns = os.environ.get("COLUMNS", "")  # As Spark does; a cell knows no escape sequence.
    return " " * (int(columns) if columns.isdecimal() else 80) + "\r"


def _above_bars(stream: TextIO) -> AbstractContextManager[Any]:
    """Takes tqdm's bars away for a moment, if any are shown."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return nullcontext() if tqdm is None else tqdm.external_write_mode(file=stream)


def first_line(error: BaseException) -> str:
    """An exception's message up to its first line break, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _escaped(text: str, *, colours: bool = False) -> str:
    if text.isprintable():  # Nearly always, and quick to see.
        return text
    if not colours:
        return _UNSAFE.sub(_escape, text)
    shown = _UNSAFE_BESIDE_COLOURS.sub(_escape_beside_colours, text)
    return shown + _RESET if "\x1b" in shown else shown


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _escape_beside_colours(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    return "" if found[2] else _escape(found)
