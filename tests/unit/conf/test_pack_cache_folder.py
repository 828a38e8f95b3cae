"""What is packed was built by this user: nothing is run out of a folder that others can change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACK = Path(__file__).parents[3] / "conf" / "pack_environment.sh"


def pack(place: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Packs, up to the first program that it would run out of its cache folder."""
    return subprocess.run(
        [PACK, "--python", sys.executable, place / "environment.tar.gz"],
        env={"PATH": os.environ["PATH"], "HOME": str(place), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("which", ["cache", "environments"])
def test_a_cache_folder_that_others_write_to_is_refused(tmp_path: Path, which: str) -> None:
    cache = tmp_path / "cache"
    environments = cache / "sparkdl-runner" / "environments"
    environments.mkdir(parents=True)
    (cache if which == "cache" else environments).chmod(0o777)
    done = pack(tmp_path, cache)
    assert done.returncode == 1
    assert "which others may write to (mode 777)" in done.stderr
    assert "Set XDG_CACHE_HOME to such a folder" in done.stderr
    assert not list(environments.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_a_cache_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, 54321, -1)
    (tmp_path / "link").symlink_to(cache)
    done = pack(tmp_path, tmp_path / "link")
    assert done.returncode == 1
    assert f"{cache}, which belongs to UNKNOWN (uid 54321)" in done.stderr
    assert not list(cache.iterdir())
