"""Pythons that are like this one but for what is broken in them, and doctor run by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SITE = Path(sysconfig.get_path("purelib"))


def like_this_one(folder: Path, *, without: Iterable[str] = ()) -> Path:
    """Makes an environment with all that is installed in this one but some.

    Args:
        folder: Where.
        without: Packages, with their records.

    Returns:
        The folder to install other things in.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python3.*/site-packages"))
    left_out = tuple(without)
    for entry in SITE.iterdir():
        package = entry.name.partition("-")[0].partition(".")[0]
        if package not in left_out and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return site


def record(site: Path, name: str, version: str) -> Path:
    """Records a package as installed, as pip does."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


@dataclass(frozen=True)
class Doctor:
    """What a run of doctor came to."""

    exit_code: int
    report: dict[str, Any]
    output: str

    def finding(self, check: str, *, where: str = "") -> dict[str, Any]:
        """The worst finding of a check, where a place matters in that place."""
        order = ("problem", "warning", "not checked", "ok")
        found = [
            finding
            for finding in self.report["findings"]
            if finding["check"] == check and where in " ".join(finding["where"])
        ]
        assert found, f"no {check} in {self.output}"
        return min(found, key=lambda finding: order.index(finding["status"]))

    def problem(self, check: str, *, where: str = "") -> str:
        """What a problem says in all, found, expected and advice."""
        finding = self.finding(check, where=where)
        assert finding["status"] == "problem", finding
        assert finding["advice"]
        return " ".join(finding[part] for part in ("found", "expected", "advice"))

    def warning(self, check: str, *, where: str = "") -> str:
        """The same of a warning."""
        finding = self.finding(check, where=where)
        assert finding["status"] == "warning", finding
        assert finding["advice"]
        return " ".join(finding[part] for part in ("found", "expected", "advice"))


def run_doctor(
    *arguments: str,
    python: Path | str = sys.executable,
    folder: Path | None = None,
    **environment: str,
) -> Doctor:
    """Runs the command with ``--json`` as a process.

    Args:
        arguments: The command's.
        python: Which Python runs it.
        folder: The folder that it runs in, where Python looks for modules as well.
        environment: Variables that are changed; an empty one is left out.
    """
    wanted = {**os.environ, **environment}
    done = subprocess.run(
        [str(python), "-m", "sparkdl_runner.doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        env={name: value for name, value in wanted.items() if value},
        cwd=folder,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Doctor(done.returncode, json.loads(done.stdout), done.stdout)
