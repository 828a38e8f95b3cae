"""The wheel holds all that its commands need, so that nobody needs a copy of this project."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "sparkdl_runner")

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def test_files_that_are_links_here_are_files_in_the_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for part in PARTS:  # A build leaves files beside what it builds.
        if (ROOT / part).is_dir():
            # Other processes compile what they import, by way of files that come and go.
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, source / part, ignore=ignored)
        else:
            shutil.copy2(ROOT / part, source / part)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(pip, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    links = [path for path in (ROOT / "sparkdl_runner").rglob("*") if path.is_symlink()]
    assert len(links) >= 6
    for link in links:
        assert held[str(link.relative_to(ROOT))] == link.read_bytes()
