"""What Horovod's build lacks is said in a sentence before, or in place of, a compiler's output.

Nor does it use what others could have changed: a wheel in a folder of theirs, or another download.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "conf" / "horovod" / "build.sh"
pytestmark = pytest.mark.one_lane
PINS = dict(re.findall(r"^([a-z]+)==(\S+) \\\n", SCRIPT.read_text(), re.MULTILINE))
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

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
    for name in ("bash", "dirname", "realpath", "find", "head", "cat", "sh", "stat"):
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


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """One that the script has kept, with what it wrote beside it."""
    (revision,) = re.findall(r"^revision=(\d+)$", SCRIPT.read_text(), re.MULTILINE)
    folder = tmp_path / ".cache" / "sparkdl-runner" / "wheelhouse" / f"key-cpu-r{revision}"
    folder.mkdir(parents=True)
    kept = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    kept.write_bytes(b"wheel")
    kept.with_suffix(".whl.sha256").write_text(f"{hash_of(kept)}  {kept.name}\n")
    for path in (kept, folder, *folder.relative_to(tmp_path).parents):
        (tmp_path / path).chmod(0o755)
    return kept


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def replace_by_a_link(wheel: Path) -> None:
    wheel.rename(wheel.with_name("wheel"))
    wheel.symlink_to("wheel")


def test_a_kept_wheel_is_taken_also_below_a_sticky_folder(tmp_path, wheel):
    wheel.parents[2].chmod(0o1777)
    assert build(tmp_path, "--wheel-only") == (0, "")


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (lambda wheel: wheel.write_bytes(b"Wheel"), "found the SHA-256 {hash} of {wheel}, and"),
        (lambda wheel: wheel.with_suffix(".whl.sha256").unlink(), "found no SHA-256 in {wheel}.sh"),
        (lambda wheel: wheel.chmod(0o666), "found {wheel}, which others may write to (mode 666)"),
        (lambda wheel: wheel.parent.chmod(0o757), "found {folder}, which others may write"),
        (lambda wheel: wheel.parents[3].chmod(0o777), "/.cache, which others may write to"),
        (replace_by_a_link, "found {wheel}, which is a link"),
        pytest.param(
            lambda wheel: os.chown(wheel, 65534, -1), "(uid 65534), and the wheel in", marks=as_root
        ),
        pytest.param(
            lambda wheel: os.chown(wheel.parents[1], 65534, -1), "found {wheelhouse}, which bel",
            marks=as_root,
        ),
        pytest.param(
            lambda wheel: (os.chown(wheel, -1, 65534), wheel.chmod(0o664)), "(mode 664)",
            marks=as_root,
        ),
    ],
)  # fmt: skip
def test_a_wheel_that_others_could_have_changed_is_refused(tmp_path, wheel, harm, found):
    harm(wheel)
    places = {"wheel": wheel, "folder": wheel.parent, "wheelhouse": wheel.parents[1]}
    for mode in ("--wheel-only", "--check"):
        status, said = build(tmp_path, mode)
        assert status == 1
        assert found.format(**places, hash=hash_of(wheel)) in said
        assert "emove" in said


def test_nothing_is_built_where_others_may_write(tmp_path):
    (tmp_path / "wheelhouse").mkdir()
    (tmp_path / "wheelhouse").chmod(0o777)
    status, said = build(tmp_path, "--wheelhouse", str(tmp_path / "wheelhouse"))
    assert status == 1
    assert f"found {tmp_path}/wheelhouse, which others may write to (mode 777)" in said
    assert list((tmp_path / "wheelhouse").iterdir()) == []


def test_a_wheel_by_its_hash_and_a_wheelhouse_that_is_trusted(tmp_path, wheel):
    wheel.parents[1].chmod(0o777)
    given, other = hash_of(wheel), 64 * "0"
    assert build(tmp_path, "--wheel-only", "--sha256", given) == (0, "")
    assert build(tmp_path, "--wheel-only", SPARKDL_RUNNER_WHEEL_SHA256=given) == (0, "")
    assert build(tmp_path, "--wheel-only", "--trust-wheelhouse") == (0, "")
    assert build(tmp_path, "--wheel-only", SPARKDL_RUNNER_TRUST_WHEELHOUSE="1") == (0, "")
    status, said = build(tmp_path, "--wheel-only", "--trust-wheelhouse", "--sha256", other)
    assert status == 1
    assert f"found the SHA-256 {given} of {wheel}, and expected {other}, as --sha256 says" in said
    wheel.unlink()
    status, said = build(tmp_path, "--wheel-only", "--sha256", given)
    assert status == 1
    assert f"found no wheel of Horovod in {wheel.parent}, and --sha256 names one" in said
    assert "found 'abc' as the wheel's SHA-256" in build(tmp_path, "--sha256", "abc")[1]


def test_another_file_than_was_published_is_not_used(tmp_path):
    """By pip itself, from an index that has a file of its own for each release."""
    assert len(PINS) >= 10
    for name, version in PINS.items():
        folder = tmp_path / "index" / name
        folder.mkdir(parents=True)
        file = f"{name}-{version}-py3-none-any.whl"
        (folder / file).write_bytes(b"no wheel")
        (folder / "index.html").write_text(f'<a href="{file}">{file}</a>')
    status, said = build(
        tmp_path,
        "--wheel-only",
        pip=f'exec "{sys.executable}" "$@"',
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL=(tmp_path / "index").as_uri(),
    )
    assert status == 1
    last = said.splitlines()[-1]
    assert re.search(
        r"pip's index gave another file than was published for [a-z]+==\S+ \(SHA-", last
    )
    assert f"{hashlib.sha256(b'no wheel').hexdigest()})" in last


def test_all_that_is_downloaded_is_pinned_by_hash():
    text = SCRIPT.read_text()
    (version,) = re.findall(r"^HOROVOD_VERSION=(\S+)$", text, re.MULTILINE)
    assert PINS["horovod"] == version
    downloads = re.findall(r'"\$python" -m pip (?:install|download) ((?:\\\n|.)*)', text)
    assert len(downloads) == 4
    for arguments in downloads:
        assert "--require-hashes" in arguments or '"$wheel"' in arguments
        assert "--no-deps" in arguments
    # Compiled, so a file for each Python and kind of machine.
    for name in ("cffi", "pyyaml"):
        hashes = re.search(rf"^{name}==\S+((?: \\\n +--hash=sha256:[0-9a-f]{{64}})+)$", text, re.M)
        assert hashes is not None
        assert hashes[1].count("--hash") == 10
