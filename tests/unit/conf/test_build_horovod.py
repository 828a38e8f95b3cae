"""What Horovod's build lacks is said in a sentence before, or in place of, a compiler's output."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "conf" / "horovod" / "build.sh"
pytestmark = pytest.mark.one_lane

# Has a torch to build for; pip ends as it is told to.
PYTHON = """\
#!/bin/sh
case "$*" in
    -) echo "key 2.13.0 None 17" ;;
    *include*) echo "{include}" ;;
    *pip*) echo "$PIP_SAYS"; {pip} ;;
esac
"""


def build(
    tmp_path: Path, *arguments: str, headers: bool = True, pip: str = "exit 1", **environment
):
    """Runs the script with a Python that is made up; returns its status and what it says."""
    include = tmp_path / "include" / "python3.11"
    include.mkdir(parents=True, exist_ok=True)
    if headers:
        (include / "Python.h").touch()
    python = tmp_path / "python"
    python.write_text(PYTHON.format(include=include, pip=pip))
    python.chmod(0o755)
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    compiler.chmod(0o755)
    kept = {"PATH": os.environ["PATH"], "CXX": str(compiler), "HOME": str(tmp_path)}
    done = subprocess.run(
        [SCRIPT, "--python", python, *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_nothing_is_missing(tmp_path):
    assert build(tmp_path, "--check") == (0, "")


def test_no_compiler(tmp_path):
    status, said = build(tmp_path, "--check", CXX="no-such-compiler")
    assert status == 1
    assert said.startswith("horovod: found no C++ compiler ('no-such-compiler')")
    assert "apt-get install g++ make" in said


def test_no_make(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "realpath", "find", "head", "cat", "sh"):
        (tools / name).symlink_to(shutil.which(name))
    status, said = build(tmp_path, "--check", PATH=str(tools))
    assert status == 1
    assert "found no make" in said


def test_no_headers_of_python(tmp_path):
    status, said = build(tmp_path, "--check", headers=False)
    assert status == 1
    assert "include/python3.11/Python.h" in said
    assert "apt-get install python3.11-dev" in said


def test_a_registry_that_gives_nothing(tmp_path):
    says = "ERROR: No matching distribution found for cmake<4,>=3.18"
    status, said = build(tmp_path, "--wheel-only", PIP_SAYS=says)
    assert status == 1
    assert "pip could not fetch Horovod's source" in said.splitlines()[-1]
    # The sentence alone: pip's own words are in the file.
    assert says not in said
    assert says in next(tmp_path.glob(".cache/sparkdl-runner/wheelhouse/*/build.log")).read_text()


def test_a_folder_for_building_that_cannot_be_written(tmp_path):
    status, said = build(tmp_path, "--wheel-only", TMPDIR=str(tmp_path / "nowhere"))
    assert status == 1
    assert f"cannot write to {tmp_path}/nowhere, where Horovod is built" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("full", ["wheelhouse", "work"])
def test_a_full_disk(tmp_path, full):
    folder = tmp_path / full
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        status, said = build(
            tmp_path,
            "--wheel-only",
            pip=f"head -c 2m /dev/zero >{folder}/zeros; exit 1",
            **({"SPARKDL_RUNNER_WHEELHOUSE" if full == "wheelhouse" else "TMPDIR": str(folder)}),
        )
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert status == 1
    assert f"the disk of {folder}" in said.splitlines()[-1]
    assert "is full" in said.splitlines()[-1]
