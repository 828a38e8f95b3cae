"""The tests of what guards files and ports pass for an ordinary user without a home and a name.

Most test runs are root's, also in containers, and root may do what the kernel refuses others.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ordinary_user import run_as

SOMEBODY = 65533
UNIT = Path(__file__).parents[2] / "unit"
TESTS = (
    *("base/test_private_folder.py", "base/test_foreign_file.py", "data/test_leases.py"),
    *("data/test_held_folder.py", "data/test_leftovers.py", "data/test_replacing.py"),
    *("data/test_verified_files.py", "launch/agent/test_rank_log.py"),
    *("launch/backends/test_rendezvous.py", "launch/backends/test_rendezvous_cache.py"),
    *("launch/wire/test_socket_owner.py", "launch/worker/test_driver_folders.py"),
)
"""Those that take no more than a second or two."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]


def run_tests(folder: Path) -> int:
    names = [str(UNIT / name) for name in TESTS]
    return int(pytest.main(["-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests", *names]))


def test_they_pass_for_an_ordinary_user(tmp_path: Path) -> None:
    said = run_as(SOMEBODY, run_tests, tmp_path)
    assert said.endswith("\n0\n"), said
