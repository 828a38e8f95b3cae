"""Every command and every code block of the README does what it says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs_blocks import lines_of, of_kind

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)

# Run in short, where another test, or `make test` itself, does the work in full.
SHORTENED = {
    # test_digits runs the job.
    "make demo": "make demo BACKEND='horovod --help'",
    # It has linted before it came here, and would run this very test again.
    "make test": "make --old-file=lint test LANE=classic ARGS=--version",
    # test_benchmark runs the job.
    "make bench": "make --dry-run bench",
    # The tests are run by `make test`, too.
    "make system": "make --dry-run system",
    # One rank: each of 11 engines and tables is another process for each rank.
    ".venv/bin/python jobs/benchmark.py loader --tables array scalar": (
        ".venv/bin/python jobs/benchmark.py loader --tables array scalar --rows 20000 --rounds 1"
        " --row-loader-rows 2000 --ranks 1"
    ),
    # test_benchmark runs these.
    ".venv/bin/python jobs/benchmark.py checkpoint": (
        ".venv/bin/python jobs/benchmark.py checkpoint --help"
    ),
    ".venv/bin/python jobs/benchmark.py faults": (
        ".venv/bin/python jobs/benchmark.py faults --help"
    ),
    ".venv/bin/python jobs/benchmark.py tracking": (
        ".venv/bin/python jobs/benchmark.py tracking --help"
    ),
}
# test_docs runs these.
IN_THE_DOCS = {line for block in of_kind("bash") for line in lines_of(block)}
SEPARATOR = "---- end of block"


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


def test_every_figure_is_filled_in():
    assert not re.search(r"\b[A-Z]+_TABLE\b|TODO|XXX", README)
    assert README.count(" times faster |") == 4
    assert len(re.findall(r"\d\.\d\d M\b", README)) == 11


def test_there_is_no_other_kind_of_block():
    assert {kind for kind, _ in BLOCKS} == {"bash", "python", "text"}


def test_python_blocks_run(tmp_path):
    """Each by itself, as nothing that one has imported or defined is there for the next.

    They share a Spark session, as notebooks do on a cluster.
    """
    codes = blocks("python")
    if importlib.util.find_spec("petastorm") is None:
        # The modern lane: what reads and writes tables is for both to show.
        codes = [code for code in codes if "converter" in code]
    assert codes
    script = tmp_path / "blocks.py"
    script.write_text(
        f"for code in {codes!r}:\n"
        "    exec(compile(code, 'README.md', 'exec'), {'__name__': '__main__'})\n"
        f"    print({SEPARATOR!r}, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *printed, _ = done.stdout.split(f"{SEPARATOR}\n")
    assert len(printed) == len(codes)
    for output in printed:
        for rank in (0, 1):
            assert f"[rank {rank}] rank {rank} o" in output


def test_the_example_is_as_short_as_promised():
    lines = [line for line in blocks("python")[0].splitlines() if line]
    assert len(lines) <= 20


@pytest.mark.one_lane
@pytest.mark.parametrize("command", [line for text in blocks("bash") for line in text.splitlines()])
def test_commands_run(command):
    short = SHORTENED.get(command, command)
    if command.removeprefix(".venv/bin/") in IN_THE_DOCS:
        short = f"{command} --help"
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        ["/bin/sh", "-c", short],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"`((?:conf|jobs|notebooks|sparkdl_runner)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path


def test_the_table_of_folders_is_the_tree():
    table = README.partition("| folder | holds |")[2].partition("\n\n")[0]
    names = set(re.findall(r"`(\w+)`", table))
    package = ROOT / "sparkdl_runner"
    for name in names:
        assert (package / f"{name}.py").exists() or (package / name).is_dir(), name
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert folders - names == {"examples", "horovod"}, "which are there for users, not for us"
