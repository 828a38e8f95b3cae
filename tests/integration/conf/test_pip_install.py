"""The real pip: why it failed, in a sentence, and what it says of packages that are not here."""

from __future__ import annotations

import http.server
import os
import runpy
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CONF = Path(__file__).parents[3] / "conf"
SCRIPT = CONF / "pip_install.sh"
pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def make_wheel(folder: Path, name: str, *metadata: str, size: int = 0) -> None:
    """A wheel of version 1.0 with one module of ``size`` random bytes."""
    folder.mkdir(exist_ok=True)
    about = f"{name}-1.0.dist-info"
    files = {
        f"{name}.txt": os.urandom(size),
        f"{about}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *metadata]
        ),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)


def install(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Returns the exit status, what the user sees, and what is kept in the file."""
    log = tmp_path / "pip.log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    kept |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    if "PIP_INDEX_URL" not in environment:
        kept |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    done = subprocess.run(
        [SCRIPT, log, sys.executable, "--target", tmp_path / "target", *arguments],
        env={**kept, "HOME": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr, log.read_text()


@contextmanager
def registry(status: int) -> Iterator[str]:
    """A package registry that answers every request with ``status``; its address."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


def test_a_registry_that_answers_with_errors(tmp_path):
    with registry(500) as address:
        failed, shown, kept = install(tmp_path, "fits", PIP_INDEX_URL=address)
    assert failed == 1
    assert "the package registry cannot be reached or answers with errors" in shown
    assert "(too many 500 error" in shown
    assert "(PIP_INDEX_URL)" in shown
    assert f"pip's output is in {tmp_path}/pip.log." in shown
    assert shown.count("\n") == 1
    assert "No matching distribution" in kept


def test_no_answer_for_a_pin_of_a_package_that_is_there_in_another_version(tmp_path):
    with registry(401) as address:
        pins = tmp_path / "constraints.txt"
        pins.write_text("pip==0.1\n")
        _, shown, kept = install(tmp_path, "--constraint", str(pins), "pip", PIP_INDEX_URL=address)
    assert "the package registry cannot be reached or answers with errors (401 Client" in shown
    assert "conflicting dependencies" in kept


def test_a_registry_that_lacks_a_version(tmp_path):
    make_wheel(tmp_path / "wheels", "fits")
    _, shown, _ = install(tmp_path, "fits==2.0")
    assert "the package registry has no fits==2.0 for Python 3." in shown


def test_a_pin_for_another_python(tmp_path):
    make_wheel(tmp_path / "wheels", "fits", "Requires-Python: >=3.99")
    pins = tmp_path / "constraints.txt"
    pins.write_text("fits==1.0\n")
    _, shown, _ = install(tmp_path, "--constraint", str(pins), "fits")
    assert "a pinned version is not for Python 3." in shown
    assert "requires a different Python: 3." in shown
    assert "with PYTHON=" in shown


def test_versions_that_exclude_one_another(tmp_path):
    make_wheel(tmp_path / "wheels", "one", "Requires-Dist: fits<1")
    make_wheel(tmp_path / "wheels", "fits")
    _, shown, _ = install(tmp_path, "one", "fits==1.0")
    assert "the versions that are asked for exclude one another (Cannot install " in shown
    assert "conf/constraints-*.txt" in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_full_disk(tmp_path):
    make_wheel(tmp_path / "wheels", "large", size=2**21)
    folder = tmp_path / "temporary"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        status, shown, _ = install(tmp_path, "large", TMPDIR=str(folder))
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert status == 1
    assert "the disk is full" in shown
    assert "make room (a lane takes 3 GB), or name roomier folders with TMPDIR" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory",
            "apt-get install g++",
        ),
        ("error: command 'gcc' failed with exit code 1\nPython.h: No such file", "python3-dev"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "a download was damaged; run it again"),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk is full"),
        ("ERROR: Permission denied: '/opt/x'", "it may not write (Permission denied: '/opt/x')"),
        (
            "ERROR: Something that nobody knows yet",
            ": Something that nobody knows yet. pip's output",
        ),
        ("", ": it ended with 3. pip's output"),
    ],
)
def test_what_cannot_be_made_to_happen_here(tmp_path, said, sentence):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncat <<"END"\n{said}\nEND\nexit 3\n')
    python.chmod(0o755)
    log = tmp_path / "pip.log"
    done = subprocess.run([SCRIPT, log, python, "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_check_of_pins_asks_pip_for_what_is_not_installed(tmp_path, monkeypatch):
    make_wheel(tmp_path / "wheels", "fits", "Requires-Python: >=3.99")
    offline = {"NO_INDEX": "1", "FIND_LINKS": f"{tmp_path}/wheels", "CONFIG_FILE": os.devnull}
    for key, value in offline.items():
        monkeypatch.setenv(f"PIP_{key}", value)
    ask_pip = runpy.run_path(str(CONF / "check_pins.py"))["ask_pip"]
    assert ask_pip({("fits", "1.0")}) == {("fits", "1.0"): ">=3.99"}
    with pytest.raises(SystemExit, match=r"(?s)missing==2\.0.*could not read the metadata"):
        ask_pip({("missing", "2.0")})
