"""The documentation's pages and the blocks in them.

What follows the language on a fence says how a block is tested:

- ``python``: all blocks of a page run in order as one script; a ``text`` block after one holds
  lines that it prints, with ``…`` for what differs from run to run. ``python old`` shows code for
  other libraries, and ``python cluster`` what needs one: both are compiled only. The functions of
  ``python frameworks`` are run by ``test_frameworks``; ``python tensorflow`` and ``python
  today`` run in environments of their own, by ``tests/tensorflow_ranks`` and ``tests/frameworks``.
- ``bash``: runs, and ends well; ``bash exit 2`` ends with that code. ``bash cluster`` and
  ``bash install`` need what is not here: their syntax is checked. In all of them, the options of
  this project's own commands exist.
- ``yaml train``, ``yaml convert`` and so on are settings of that job, checked as it checks them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from every_job import EVERY_JOB

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
KINDS = {
    *("python", "python old", "python cluster"),
    *("python frameworks", "python tensorflow", "python today"),
    *("bash", "bash exit 2", "bash cluster", "bash install"),
    *(f"yaml {job.name}" for job in EVERY_JOB),
    "text",
}
_FENCED = re.compile(r"^```([^\n`]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page.name, text.count("\n", 0, one.start()) + 1, one[1].strip(), one[2])
        for one in _FENCED.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of_kind(*kinds: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind in kinds]


def prose(page: Path) -> str:
    """The page without its blocks."""
    return _FENCED.sub("", page.read_text())


def lines_of(block: Block) -> list[str]:
    """The commands of a bash block, each on one line, without comments."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
