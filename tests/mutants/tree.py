"""A copy of the repository that is broken on purpose, and runs of pytest in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
# This package ends processes by their ids. A mutant may take any id for one of its own, and so is
# to see no process but those that it started; and none of them outlives it. bash stays, since the
# first process of such a namespace has to bury the orphans.
_ALONE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
_ALONE += ["--user", "--map-current-user"] * (os.geteuid() != 0)
_ALONE += ["bash", "-c", '"$@"; exit $?', "bash"]


def files(*folders: str) -> list[str]:
    """What belongs to the repository, committed or not, below ``folders``."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(path for path in set(listed.split("\0")) if path and (ROOT / path).exists())


def digest(*folders: str) -> str:
    """Changes when any file below ``folders`` does; what is in this folder does not count."""
    here = str(Path(__file__).parent.relative_to(ROOT))
    found = hashlib.sha256()
    for path in files(*folders):
        if not path.startswith(here):
            found.update(path.encode() + b"\0" + (ROOT / path).read_bytes() + b"\0")
    return found.hexdigest()


def check_namespaces() -> None:
    """Checks that mutants can be kept from other processes.

    Raises:
        RuntimeError: They cannot.
    """
    try:
        tried = subprocess.run([*_ALONE, "true"], capture_output=True, text=True)
        wrong = tried.stderr.strip() if tried.returncode else ""
    except OSError as error:
        wrong = str(error)
    if wrong:
        raise RuntimeError(
            f"mutants need a process namespace of their own, and unshare says: {wrong}. Run this "
            "as root, or where users may make namespaces: a mutant could end any process here."
        )


class Tree:
    """A copy in a temporary folder. Runs of pytest there import its package, in children too."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="mutants-"))
        self.folder = self._home / "tree"
        self._temporary = self._home / "tmp"
        self._changes = 0
        self._process: subprocess.Popen[bytes] | None = None
        for path in files():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, self.folder / path, follow_symlinks=False)

    def close(self) -> None:
        """Removes the copy."""
        shutil.rmtree(self._home, ignore_errors=True)

    def write(self, file: str, source: bytes) -> None:
        """Replaces a file."""
        path = self.folder / file
        path.write_bytes(source)
        # Python takes a compiled file for current where size and second of the change are the same.
        self._changes += 1
        os.utime(path, (self._changes, self._changes))

    def pytest(
        self,
        tests: Sequence[str],
        *options: str,
        timeout_seconds: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[int | None, str]:
        """Runs pytest here.

        Returns:
            Its exit code, or None where it was killed after ``timeout_seconds``; and what it said.
        """
        self._temporary.mkdir()
        # One a line: hundreds of names do not fit into a command.
        listed = self._home / "tests"
        listed.write_text("\n".join(tests))
        search_path = os.pathsep.join([str(self.folder), str(self.folder / "tests")])
        with (self._home / "output").open("wb") as output:
            pytest = [sys.executable, "-P", "-m", "pytest", "-pno:cacheprovider"]
            self._process = subprocess.Popen(
                [*_ALONE, *pytest, *options, f"@{listed}"],
                cwd=self.folder,
                env={
                    **os.environ,
                    **(environment or {}),
                    "PYTHONPATH": search_path,
                    "TMPDIR": str(self._temporary),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.kill()
            self._process.wait()
            shutil.rmtree(self._temporary, ignore_errors=True)
        return code, (self._home / "output").read_text(errors="replace")

    def kill(self) -> None:
        """Ends what runs here, with all that it has started."""
        if self._process is not None:
            self._process.kill()
