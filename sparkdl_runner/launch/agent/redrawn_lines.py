"""Lines that a program draws again in place, as progress bars are: only their last state is kept.

A bar begins each state with a carriage return. A bar below another, as of a loop in a loop, is
drawn by a line break, its state, and moves of the cursor back up; it counts as a state of the
upper one's line.
"""

from __future__ import annotations

import re

_UP = b"\x1b[A"
_BELOW = re.compile(rb"(\n+)([^\n\x1b]*)((?:\x1b\[A)+)")


def current_state(line: bytes) -> bytes:
    """The last state of a line that has not ended; empty if blanks have erased it."""
    state = line.rstrip(b"\r").rpartition(b"\r")[2]
    return state if state.strip() else b""


def last_state(line: bytes) -> bytes:
    """What is kept of a line that has ended: its last state that is more than blanks."""
    if b"\r" not in line:
        return line
    return next((state for state in reversed(line.split(b"\r")) if state.strip()), b"")


def last_states(text: bytes) -> bytes:
    """The same of each line of a text."""
    if b"\r" not in text:
        return text
    return b"\n".join(map(last_state, text.split(b"\n")))


def split_finished(text: bytes, *, is_quiet: bool) -> tuple[bytes, bytes]:
    """Splits what has come into finished lines, and the rest that may go on.

    Args:
        text: All that was not split off before.
        is_quiet: Whether nothing more came for a moment. Else a line break after a bar may be the
            way to one below it, and the bar's line is not finished.
    """
    if _UP in text:
        text = _BELOW.sub(_as_state_of_the_line_above, text)
    end = text.rfind(b"\n") + 1
    if end and not is_quiet and text[end : end + 1] in (b"", b"\r"):
        lines = text[:end].rstrip(b"\n")
        last = lines.rfind(b"\n") + 1
        if b"\r" in lines[last:].rstrip(b"\r"):
            end = last
    return text[:end], text[end:]


def _as_state_of_the_line_above(found: re.Match[bytes]) -> bytes:
    breaks, state, ups = found.groups()
    return breaks[: max(0, len(breaks) - len(ups) // len(_UP))] + b"\r" + state
