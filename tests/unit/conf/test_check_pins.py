"""The check of pins names those that a supported Python cannot install."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHECK = runpy.run_path(str(ROOT / "conf" / "check_pins.py"))

pytestmark = pytest.mark.one_lane


def install(site_packages: Path, name: str, version: str, requires: str | None) -> None:
    folder = site_packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if requires is not None:
        lines.append(f"Requires-Python: {requires}")
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def test_the_offender_is_named_with_the_python_it_refuses(tmp_path):
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# made up\nToo_New==4.1\ntorch==2.13.0\nno-demand==1.0\ntoo-old==1.0\n")
    install(tmp_path / "lane", "too-new", "4.1", ">=3.11.5")
    install(tmp_path / "lane", "torch", "2.13.0+cpu", ">=3.10")
    install(tmp_path / "lane", "no-demand", "1.0", None)
    install(tmp_path / "other", "too-old", "1.0", "<3.12")
    pins = CHECK["read_pins"](constraints)
    known = CHECK["installed_requirements"]([tmp_path / "lane", tmp_path / "other"])
    too_new, too_old = CHECK["refusals"](pins, known)
    assert too_new == (
        "too-new==4.1 asks for Python >=3.11.5, so Python 3.11.2 cannot install it; "
        "pin a version of too-new that admits 3.11.2 and 3.12.0."
    )
    assert too_old == (
        "too-old==1.0 asks for Python <3.12, so Python 3.12.0 cannot install it; "
        "pin a version of too-old that admits 3.11.2 and 3.12.0."
    )


def test_a_line_that_pins_nothing_is_refused(tmp_path):
    constraints = tmp_path / "constraints-x.txt"
    constraints.write_text("torch>=2.13\n")
    with pytest.raises(SystemExit, match=r"constraints-x\.txt: 'torch>=2\.13' is no pin"):
        CHECK["read_pins"](constraints)


def test_the_pins_of_this_repository_have_been_checked():
    noted = dict(
        reversed(line.split("  "))
        for line in (ROOT / "conf" / "pins-checked.sha256").read_text().splitlines()
    )
    assert set(noted) == {
        "conf/check_pins.py",
        *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("conf/constraints-*.txt")),
    }
    for file, digest in noted.items():
        assert hashlib.sha256((ROOT / file).read_bytes()).hexdigest() == digest, (
            f"{file} has changed since the pins were checked; run make lint and commit "
            "conf/pins-checked.sha256"
        )
