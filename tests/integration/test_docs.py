"""The documentation does what it says: its blocks run, its links lead somewhere.

What follows the language on a fence says how a block is tested:

- ``python``: all blocks of a page run in order as one script; a ``text`` block after one holds
  lines that it prints, with ``…`` for what differs from run to run. ``python old`` shows code for
  other libraries, and ``python cluster`` what needs one: both are compiled only.
- ``bash``: runs, in a shortened form where that is given here. ``bash cluster`` and
  ``bash install`` need what is not here: their syntax is checked.
- In both, and in the text, the options of this project's own commands exist.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
IN_CLASSIC_LANE = importlib.util.find_spec("petastorm") is not None
KINDS = {"python", "python old", "python cluster", "bash", "bash cluster", "bash install"}
KINDS |= {"text", "yaml", "yaml job", "yaml tune"}

SHORTENED: dict[str, str] = {}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```([^\n`]+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [
        Block(page.name, text.count("\n", 0, one.start()) + 1, one[1].strip(), one[2])
        for one in found
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


def test_there_is_no_other_kind_of_block():
    assert {block.kind for block in BLOCKS} <= KINDS
    for page in PAGES:
        fences = re.findall(r"^```", page.read_text(), flags=re.MULTILINE)
        assert len(fences) == 2 * len(blocks_of(page)), page.name


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.kind == "python" for block in blocks_of(page))],
    ids=lambda page: page.stem,
)
def test_python_blocks_run_and_print_what_is_shown(tmp_path, page):
    blocks = blocks_of(page)
    separator = "---- end of block"
    script = "".join(
        f"{block.text}\nprint({separator!r}, flush=True)\n"
        for block in blocks
        if block.kind == "python"
    )
    (tmp_path / "page.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    printed = iter(done.stdout.split(separator + "\n"))
    before, output = "", ""
    for block in blocks:
        if block.kind == "python":
            output = next(printed)
        elif block.kind == "text" and before == "python":
            missing = [line for line in block.text.splitlines() if not is_in(line, output)]
            assert not missing, f"{where(block)} shows {missing}; this was printed:\n{output}"
        before = block.kind


def is_in(line: str, output: str) -> bool:
    pattern = "[^\n]*".join(re.escape(part) for part in line.split("…"))
    return re.search(f"^{pattern}$", output, flags=re.MULTILINE) is not None
