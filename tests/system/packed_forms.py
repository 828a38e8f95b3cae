"""The project in the forms in which it comes to a cluster: a packed environment, and a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pack_environment(folder: Path) -> Path:
    """Packs the environment. All but this project is kept in the user's cache from the last time.

    Returns:
        The archive.
    """
    archive = folder / "environment.tar.gz"
    python = Path(sys.base_prefix) / "bin" / "python3"
    done = subprocess.run(
        [str(ROOT / "conf" / "pack_environment.sh"), "--python", str(python), str(archive)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return archive


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks it, for the driver. Returns the environment's Python."""
    folder.mkdir()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True)
    return folder / "bin" / "python"


def without_project(environment: Path, folder: Path) -> Path:
    """Makes the same environment without this project. Returns its Python."""
    shutil.copytree(environment, folder, symlinks=True, copy_function=os.link)
    for found in folder.glob("lib/python3*/site-packages/sparkdl_runner*"):
        shutil.rmtree(found)
    return folder / "bin" / "python"


def wheel_for_py_files(folder: Path) -> Path:
    """Builds the project's wheel. Spark knows a file of Python's by ``.zip``, which a wheel is."""
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "sparkdl_runner",
        source / "sparkdl_runner",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(source)],
        check=True,
    )
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(folder / "sparkdl_runner.zip")
