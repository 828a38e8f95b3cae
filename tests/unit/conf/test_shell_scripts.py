"""Every shell script of the repository is one that bash and shellcheck have no complaint about."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def is_shell(path: Path) -> bool:
    if path.is_symlink():
        return False  # It leads to one of the others.
    if path.suffix == ".sh":
        return True
    if path.suffix or not path.is_file():
        return False
    return re.match(rb"#!.*\b(ba)?sh\b", path.read_bytes()[:80]) is not None


# Environments and caches are in hidden folders, or in build; the hidden one that is ours is named.
SCRIPTS = sorted(
    path
    for folder in [ROOT / ".ci", *ROOT.glob("[!.]*/")]
    if folder.name != "build"
    for path in folder.rglob("*")
    if is_shell(path)
)
named = pytest.mark.parametrize(
    "script", SCRIPTS, ids=[path.relative_to(ROOT).as_posix() for path in SCRIPTS]
)


def test_the_scripts_are_found():
    found = {path.relative_to(ROOT).as_posix() for path in SCRIPTS}
    assert {".ci/run", "conf/horovod/build.sh", "conf/standalone/submit.sh"} <= found


@named
def test_bash_can_read_it(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@named
@pytest.mark.skipif(
    shutil.which("shellcheck") is None and os.environ.get("CI", "").lower() not in ("true", "1"),
    reason="needs shellcheck (Debian: apt-get install shellcheck)",
)
def test_shellcheck_finds_nothing(script):
    done = subprocess.run(
        ["shellcheck", "--external-sources", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@named
def test_it_stops_at_the_first_error_and_can_be_started(script):
    text = script.read_text()
    if not text.startswith("#!"):
        # Read by others, which have said so.
        assert text.startswith("# shellcheck shell=bash\n")
        return
    assert "\nset -euo pipefail\n" in text
    assert script.stat().st_mode & 0o111, "chmod +x it"
