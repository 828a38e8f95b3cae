"""What keeps an environment from being packed is said in a sentence, before anything is built."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "conf" / "pack_environment.sh"


def pack(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the file to write"),
        (["environment.zip"], "must end in .tar.gz"),
        (["--lane", "newest", "environment.tar.gz"], "no lane 'newest'; it is classic or modern"),
        (["--lane"], "--lane needs a value"),
        (["--fast", "environment.tar.gz"], "unknown argument --fast"),
        (["a.tar.gz", "b.tar.gz"], "two outputs are named, a.tar.gz and b.tar.gz"),
        (["nowhere/environment.tar.gz"], "cannot write to the folder"),
        (["--python", "python9", "environment.tar.gz"], "no Python at 'python9'"),
        (["--python", "/bin/true", "environment.tar.gz"], "/bin/true is no Python 3.11 or 3.12"),
        (["--python-prefix", "usr", "environment.tar.gz"], "it must be a full path"),
    ],
)
def test_a_mistake_is_said_in_one_sentence(tmp_path, arguments, said):
    done = pack(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_its_help_says_what_hosts_need(tmp_path):
    done = pack("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "same version at the same path" in done.stdout
    assert "--archives OUTPUT.tar.gz#environment" in done.stdout
