#!/usr/bin/env python3
"""Checks that every pin can be installed with the oldest Python of each version that set-up takes.

Reads ``Requires-Python`` where the pin is installed in a lane, and asks pip for the metadata of the
rest, such as CUDA packages. What passed is written to ``pins-checked.sha256``, to be committed with
the pins: ``make lint`` runs this only when a file named there has changed.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
CHECKED = ROOT / "conf" / "pins-checked.sha256"
# Debian 12's own Python, and the first 3.12.
PYTHONS = ("3.11.2", "3.12.0")

Pin = tuple[str, str]  # name and version, as ``pin`` writes them


def pin(name: str, version: str) -> Pin:
    """Writes name and version so that they can be compared; torch's 2.13.0+cpu is a 2.13.0."""
    return str(canonicalize_name(name)), Version(version).public


def read_pins(constraints: Path) -> set[Pin]:
    """Returns the pins of a constraints file; raises SystemExit for a line that is none."""
    pins = set[Pin]()
    for line in constraints.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        requirement = Requirement(text)
        specifiers = list(requirement.specifier)
        if len(specifiers) != 1 or specifiers[0].operator != "==":
            raise SystemExit(f"{constraints.name}: '{text}' is no pin; write name==version.")
        pins.add(pin(requirement.name, specifiers[0].version))
    return pins


def installed_requirements(folders: Iterable[Path]) -> dict[Pin, str]:
    """Returns the Requires-Python ("" for none) of what is installed in site-packages folders."""
    found = metadata.distributions(path=[str(folder) for folder in folders])
    return {
        pin(one.name, one.version): (one.metadata.get_all("Requires-Python") or [""])[0]
        for one in found
    }


def ask_pip(pins: Iterable[Pin]) -> dict[Pin, str]:
    """Returns the Requires-Python of pins by pip's dry run; raises SystemExit where pip fails."""
    wanted = [f"{name}=={version}" for name, version in sorted(pins)]
    if not wanted:
        return {}
    # The Python that runs this may be one that a pin refuses, so pip is not to look.
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--ignore-requires-python"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--report", "-"]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise SystemExit("\n".join([*errors, "pip could not read the metadata of all pins."]))
    found = [one["metadata"] for one in json.loads(done.stdout)["install"]]
    return {pin(one["name"], one["version"]): one.get("requires_python", "") for one in found}


def refusals(pins: Iterable[Pin], requirements: Mapping[Pin, str]) -> list[str]:
    """Returns a sentence for each pin that one of ``PYTHONS`` cannot install."""
    sentences = []
    for name, version in sorted(pins):
        admitted = SpecifierSet(requirements[name, version])
        refused = [python for python in PYTHONS if not admitted.contains(python)]
        if refused:
            sentences.append(
                f"{name}=={version} asks for Python {admitted}, so Python {' and '.join(refused)} "
                f"cannot install it; pin a version of {name} that admits {' and '.join(PYTHONS)}."
            )
    return sentences


def main() -> None:
    """Checks the pins of all lanes, and notes what passed."""
    files = sorted((ROOT / "conf").glob("constraints-*.txt"))
    requirements = installed_requirements(ROOT.glob(".venv*/lib/python3*/site-packages"))
    sentences = []
    for pins in map(read_pins, files):
        requirements |= ask_pip(pins - requirements.keys())
        sentences += refusals(pins, requirements)
    if sentences:
        raise SystemExit("\n".join(dict.fromkeys(sentences)))
    CHECKED.write_text(
        "".join(
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT)}\n"
            for path in [Path(__file__).resolve(), *files]
        )
    )


if __name__ == "__main__":
    main()
