"""The kit for a machine with a GPU is small enough to carry, and finds all it needs in itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAKE = Path(__file__).parents[2] / "gpu" / "make_kit.sh"
MOST_BYTES = 60 << 20
BROUGHT = {"cloudpickle", "psutil", "pyarrow", "pytest", "sparkdl_runner"}
BROUGHT_FILES = {"pynvml.py", "pytest_timeout.py"}

pytestmark = pytest.mark.one_lane


def test_a_kit_lists_its_tests_without_network_or_java(tmp_path):
    kit = tmp_path / "kit"
    version = "{}.{}".format(*sys.version_info)
    subprocess.run([MAKE, version, kit], env={**os.environ, "PYTHON": sys.executable}, check=True)
    size = sum(path.stat().st_size for path in kit.rglob("*") if path.is_file())
    assert size < MOST_BYTES
    done = subprocess.run(
        [sys.executable, kit / "run.py", "--list"],
        cwd=tmp_path,
        env={"PATH": "/usr/sbin", "HOME": str(tmp_path), "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "test_training_in_bfloat16[gloo-two-ranks]" in done.stderr
    assert {path.name for path in (kit / "site").iterdir()} >= BROUGHT | BROUGHT_FILES
