"""Records ``make demo CHAOS=1`` and draws it as a moving picture: ``make picture``.

usage: demo.py COMMAND...    runs it, writes docs/demo.cast and draws docs/demo.svg
       demo.py               draws docs/demo.svg again

The recording has asciinema's format, version 2: a JSON header, then a line for each output with its
second. The picture shows each line with the second at which it came, and cuts long waits short.
"""

from __future__ import annotations

import html
import json
import os
import pty
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CAST = ROOT / "docs" / "demo.cast"
PICTURE = ROOT / "docs" / "demo.svg"
SHOWN_COMMAND = "make demo CHAOS=1"
SHOWN_FOLDER = "/home/me/sparkdl_runner"

COLUMNS, ROWS = 104, 26
LONGEST_WAIT_SECONDS = 1.5
LAST_SCREEN_SECONDS = 6.0

WIDTH_OF_A_CHARACTER, HEIGHT_OF_A_LINE = 8, 19
MARGIN, TIME_COLUMNS = 16, 8
COLOURS = (
    (r"was ended by|Restarting", "#ff7b72"),
    (r"goes on after step|returned \{", "#7ee787"),
    (r"^\[rank \d+\]", "#c9d1d9"),
    (r"^\$ ", "#ffffff"),
    (r"^sparkdl_runner: ", "#79c0ff"),
)
OTHER_COLOUR = "#8b949e"


# How a terminal is told to erase, move and colour. A picture needs none of it.
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Line(NamedTuple):
    """One row of the screen."""

    second: float  # of the recording, when it was complete
    text: str
    colour: str
    is_first: bool  # rather than the rest of a line that is too long for a row


def record(command: list[str]) -> None:
    """Runs the command in a terminal, and keeps what it prints with its times.

    Raises:
        SystemExit: The command failed; the earlier recording is left as it is.
    """
    start = time.monotonic()
    process, terminal = pty.fork()
    if process == 0:
        os.execvp(command[0], command)  # noqa: S606
    events: list[tuple[float, str, str]] = []
    while output := _read(terminal):
        events.append((round(time.monotonic() - start, 3), "o", output))
    if code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        raise SystemExit(f"{' '.join(command)} ended with {code}; nothing is recorded.")
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "command": SHOWN_COMMAND}
    text = "".join(json.dumps(entry) + "\n" for entry in (header, *events))
    CAST.write_text(text.replace(str(ROOT), SHOWN_FOLDER))


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # Linux's way to say that the other side has closed.
        return ""


def lines_of(cast: str) -> list[Line]:
    """The rows of a recording, with the command as the first."""
    _, *events = map(json.loads, cast.splitlines())
    whole: list[tuple[float, str]] = [(0.0, f"$ {SHOWN_COMMAND}")]
    rest = ""
    for second, _, output in events:
        *complete, rest = (rest + output).replace("\r\n", "\n").split("\n")
        whole += [(second, _CONTROL.sub("", text.rpartition("\r")[2])) for text in complete]
    found = []
    for second, text in whole:
        colour = next((hue for sign, hue in COLOURS if re.search(sign, text)), OTHER_COLOUR)
        for place in range(0, max(len(text), 1), COLUMNS):
            row = text[place : place + COLUMNS]
            found.append(Line(second, row, colour, is_first=not place))
    return found


def draw(lines: list[Line]) -> str:
    """An SVG that shows the lines one after the other, scrolls, and begins again."""
    times = [0.0]
    for before, line in pairwise(lines):
        times.append(times[-1] + min(line.second - before.second, LONGEST_WAIT_SECONDS))
    total = times[-1] + LAST_SCREEN_SECONDS
    percents = [f"{100 * moment / total:.2f}%" for moment in times]
    width = 2 * MARGIN + (TIME_COLUMNS + COLUMNS) * WIDTH_OF_A_CHARACTER
    height = 2 * MARGIN + ROWS * HEIGHT_OF_A_LINE

    rows, frames = [], []
    shown_second = "0.0"
    for number, (line, percent) in enumerate(zip(lines, percents, strict=True)):
        y = (number + 1) * HEIGHT_OF_A_LINE - 5
        if number:
            frames.append(f"@keyframes r{number}{{0%{{opacity:0}}{percent}{{opacity:1}}}}")
        rows.append(f'<g style="animation-name:r{number}" fill="{line.colour}">')
        if line.is_first and line.text and f"{line.second:.1f}" != shown_second:
            shown_second = f"{line.second:.1f}"
            x = (TIME_COLUMNS - 2) * WIDTH_OF_A_CHARACTER
            rows.append(f'<text class="time" x="{x}" y="{y}">{shown_second} s</text>')
        x = TIME_COLUMNS * WIDTH_OF_A_CHARACTER
        rows.append(f'<text x="{x}" y="{y}">{html.escape(line.text)}</text></g>')
    last_shift = -max(0, len(lines) - ROWS) * HEIGHT_OF_A_LINE
    ends = [n for n in range(1, len(lines)) if percents[n] != percents[n - 1]] + [len(lines)]
    shifts = [_shift(percents[end - 1], end) for end in ends]
    new_line = "\n"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" role="img">
<title>{SHOWN_COMMAND}: a rank is killed, and the training goes on from its checkpoint</title>
<style>
text{{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}}
.time{{fill:{OTHER_COLOUR};text-anchor:end}}
g{{animation:{total:.1f}s step-end infinite}}
.all{{transform:translateY({last_shift}px);animation-name:scroll}}
{new_line.join(frames)}
@keyframes scroll{{{"".join(shifts)}}}
@media (prefers-reduced-motion:reduce){{g{{animation:none}}}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN}" height="{height - 2 * MARGIN}">
<g class="all">
{new_line.join(rows)}
</g>
</svg>
</svg>
"""


def _shift(percent: str, lines: int) -> str:
    """The keyframe from which the last of so many lines is the lowest on the screen."""
    pixels = max(0, lines - ROWS) * HEIGHT_OF_A_LINE
    return f"{percent}{{transform:translateY(-{pixels}px)}}"


def main() -> None:
    """Records if a command is given, and draws."""
    if len(sys.argv) > 1:
        record(sys.argv[1:])
    PICTURE.write_text(draw(lines_of(CAST.read_text())))


if __name__ == "__main__":
    main()
