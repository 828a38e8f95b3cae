"""The kit for a machine with a GPU: its script's report, and what it and its maker refuse."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

GPU = Path(__file__).parents[3] / "gpu"
_spec = importlib.util.spec_from_file_location("gpu_kit_run", GPU / "run.py")
run = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(run)

MINOR = sys.version_info.minor
STARTED = {"kind": "started", "test": "tests/gpu/test_a.py::test_one"}
PASSED = {"kind": "test", "test": STARTED["test"], "outcome": "passed", "why": ""}
SKIPPED = {"kind": "test", "test": "tests/gpu/test_a.py::test_two", "outcome": "skipped"}
FIGURE = {"kind": "figure", "name": "copy", "value": 51.234, "unit": "GB/s", "beside": "card: 55"}
MACHINE = {"gpus": [], "torch": "2.13.0", "python": "3.12.3", "cores": 16}


@pytest.mark.parametrize(
    ("wheel", "minor", "expected"),
    [
        ("pyarrow-25.0.1-cp312-cp312-manylinux_2_28_x86_64.whl", 12, True),
        ("pyarrow-25.0.1-cp312-cp312-manylinux_2_28_x86_64.whl", 11, False),
        ("psutil-7.2.2-cp36-abi3-manylinux2010_x86_64.manylinux_2_28_x86_64.whl", 11, True),
        ("pytest-9.2.0-py3-none-any.whl", 12, True),
        ("six-1.17.0-py2.py3-none-any.whl", 12, True),
    ],
)
def test_which_wheels_fit_a_python(wheel, minor, expected):
    assert run.fits(wheel, minor) is expected


def make_wheel(kit: Path, name: str) -> None:
    (kit / "wheels").mkdir(exist_ok=True)
    with zipfile.ZipFile(kit / "wheels" / name, "w") as archive:
        archive.writestr("brought/__init__.py", "")


def test_wheels_are_unpacked_in_place_of_what_was_there(tmp_path):
    make_wheel(tmp_path, "brought-1-py3-none-any.whl")
    site = tmp_path / "site"
    (site / "old").mkdir(parents=True)
    assert run.unpack(tmp_path, site) == ["brought-1-py3-none-any.whl"]
    assert [path.name for path in site.iterdir()] == ["brought"]


def test_wheels_of_another_python_are_refused(tmp_path):
    make_wheel(tmp_path, "brought-1-cp310-cp310-linux_x86_64.whl")
    with pytest.raises(SystemExit, match=f"make gpu GPU_PYTHON=3.{MINOR}"):
        run.unpack(tmp_path, tmp_path / "site")


def test_a_run_without_a_gpu_says_what_it_left_out():
    why = "needs a GPU, and torch 2.13.0 sees none"
    report = run.report_of([STARTED, PASSED, FIGURE, {**SKIPPED, "why": why}], 0)
    text = run.tables(MACHINE, report)
    assert "no GPU; torch 2.13.0, Python 3.12.3, 16 cores" in text
    assert "| copy | 51.2 GB/s | card: 55 |" in text
    assert "1 passed, 0 failed, 1 left out" in text
    assert f"left out, {why}:\n  test_a.py::test_two" in text


@pytest.mark.parametrize(
    ("exit_code", "why"), [(None, "it was not done in time"), (-11, "its process died")]
)
def test_a_test_that_never_ended_has_failed(exit_code, why):
    report = run.report_of([STARTED, FIGURE], exit_code)
    assert [(test["outcome"], test["why"]) for test in report["tests"]] == [("failed", why)]
    assert report["figures"] == [FIGURE]
    assert f"FAILED {STARTED['test']}:\n{why}" in run.tables(MACHINE, report)


@pytest.mark.parametrize("exit_code", [2, 4, 5, None])
def test_no_test_at_all_is_a_failure(exit_code):
    (test,) = run.report_of([], exit_code)["tests"]
    assert test["outcome"] == "failed"


def test_the_maker_refuses_what_it_cannot_make(tmp_path):
    (tmp_path / "mine").mkdir()
    for version, folder, words in (
        ("3.10", "kit", "GPU_PYTHON is '3.10'; it is 3.11 or 3.12"),
        ("3.12", "mine", "is there and is no kit; name another folder"),
    ):
        done = subprocess.run(
            [GPU / "make_kit.sh", version, tmp_path / folder],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
