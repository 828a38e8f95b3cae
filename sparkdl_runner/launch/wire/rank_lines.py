"""How the lines that ranks print are shown: each with its rank."""

from __future__ import annotations

from typing import TextIO

from sparkdl_runner.base import shown_text
from sparkdl_runner.rank.world import World


def write_lines(stream: TextIO, world: World, lines: list[str]) -> None:
    """Writes lines, each with its rank, in one call so that ranks do not run into each other.

    They come above a progress bar, if one is shown.
    It does not raise: a closed pipe or a terminal that lacks a character must not end a training.
    """
    each = (part for line in lines for part in line.removesuffix("\n").split("\n"))
    text = "".join(f"[rank {world.rank}] {shown_text.line(part, colours=True)}\n" for part in each)
    try:
        try:
            shown_text.write(text, stream)
        except UnicodeEncodeError:
            encoding = getattr(stream, "encoding", None) or "ascii"
            shown_text.write(text.encode(encoding, "backslashreplace").decode(encoding), stream)
    except (OSError, ValueError):
        pass
