"""A PostgreSQL of one's own: no port, no password, nothing left."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

START_SECONDS = 300
USER = "postgres"


def programs() -> Path | None:
    """Where PostgreSQL's programs are: those of the newest version, or None if there are none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    # Debian keeps them off the PATH.
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian[-1].parent if debian else None


class Postgres:
    """A database server that listens on a socket in a folder which only its own user can enter.

    It refuses to run as root; there it runs as Debian's ``postgres``.
    """

    def __init__(self) -> None:
        self._programs = programs()
        # The path of a socket must be short, and its user must be able to go there.
        self._folder = Path(tempfile.mkdtemp(prefix="sparkdl-postgres-", dir="/tmp"))
        self._user: str | None = None
        if os.getuid() == 0:
            self._user = USER
            account = pwd.getpwnam(USER)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The database, as SQLAlchemy names it."""
        return f"postgresql+psycopg2://{USER}@/postgres?host={self._folder}"

    def start(self) -> None:
        """Makes the database and waits until it takes connections."""
        data = self._folder / "data"
        self._run("initdb", "--pgdata", data, "--username", USER, "--auth", "trust", "--no-sync")
        command = [self._programs / "postgres", "-D", data, "-k", self._folder]
        # No port on any network, and nothing that must survive a power failure.
        command += ["-c", "listen_addresses=", "-c", "fsync=off"]
        with (self._folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=self._folder,
                user=self._user,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while self._run("pg_isready", "--quiet", "--host", self._folder, check=False) != 0:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self._folder / "server.log").read_text()[-4000:])
            time.sleep(0.1)

    def close(self) -> None:
        """Ends it and removes all that it wrote."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # At once.
            self._process.wait(300)
        shutil.rmtree(self._folder)

    def _run(self, program: str, *arguments: object, check: bool = True) -> int:
        done = subprocess.run(
            [str(self._programs / program), *map(str, arguments)],
            cwd=self._folder,
            user=self._user,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.returncode
