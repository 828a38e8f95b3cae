"""Every command and every code block of the README does what it says."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```([\w ]+)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)

# Run in short, where another test, or `make test` itself, does the work in full.
SHORTENED = {
    # test_digits runs the job.
    "make demo": "make demo BACKEND='horovod --help'",
}
SEPARATOR = "---- end of block"


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


def test_there_is_no_other_kind_of_block():
    assert {kind for kind, _ in BLOCKS} == {"bash", "bash install", "python"}


@pytest.mark.one_lane
def test_python_blocks_run(tmp_path):
    """Each by itself, as nothing that one has imported or defined is there for the next.

    They share a Spark session, as notebooks do on a cluster.
    """
    codes = blocks("python")
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
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *printed, _ = done.stdout.split(f"{SEPARATOR}\n")
    assert len(printed) == len(codes)
    *functions, pipeline = printed
    for output in functions:
        for rank in (0, 1):
            assert f"[rank {rank}] rank {rank} o" in output
    shown = re.findall(r"^\| +(\d)\| +(\d)\.0\|\[", pipeline, flags=re.MULTILINE)
    assert len(shown) == 5
    assert sum(target == prediction for target, prediction in shown) >= 4


def test_what_is_to_be_installed_can_be():
    """That the wheel works where it is installed is tested in ``conf/test_distributions.py``."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    installed = re.findall(r"pip install '\.\[([\w,]+)\]'", README)
    assert len(installed) == 3
    for extras in installed:
        assert set(extras.split(",")) <= set(setup["options.extras_require"])
    commands = re.findall(r"sparkdl-runner ([\w-]+)", "".join(blocks("bash install")))
    assert commands == ["build-horovod"]
    for name in commands:
        command = [sys.executable, "-m", "sparkdl_runner", name, "--help"]
        subprocess.run(command, check=True, capture_output=True)


def test_it_begins_with_what_can_be_tried_at_once():
    """An installation, a function with its call, the moving picture; plain words before terms."""
    signs = [
        *("N processes that train together", "```bash install", "```python", "docs/demo.svg"),
        *("```bash\n", "HorovodRunner"),
    ]
    places = [README.index(sign) for sign in signs]
    assert places == sorted(places)
    assert "allreduce" not in README[: places[0]]


def test_it_is_as_short_as_promised():
    assert len(README.splitlines()) <= 150
    for code in blocks("python"):
        assert len([line for line in code.splitlines() if line]) <= 20


@pytest.mark.one_lane
@pytest.mark.parametrize("command", [line for text in blocks("bash") for line in text.splitlines()])
def test_commands_run(command):
    short = SHORTENED.get(command, command)
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        ["/bin/sh", "-c", short],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    assert not re.search(r"TODO|XXX", README)
    for path in re.findall(r"`((?:conf|jobs|notebooks|sparkdl_runner)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path
