#!/usr/bin/env python3
"""Runs the tests of GPUs on this machine, from the folder that `make gpu` made.

Needs a Python with torch and numpy, and nothing else: no network, Java, Spark or pip. What else the
tests need is unpacked into the folder `site` beside this file. Without a GPU, what needs none is
run, and what was left out is said. Prints tables, then the same as JSON.

exit codes: 0 nothing failed, 1 something did, or the tests could not be run
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"
# A machine may be lent for ten minutes; the report must be printed before they are over.
SECONDS = 450
LOOK = """
import json, os, platform, torch, numpy
facts = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count(),
         "numpy": numpy.__version__, "cuda": torch.version.cuda, "gpus": []}
if torch.cuda.is_available():
    try:
        import pynvml
        pynvml.nvmlInit()
        facts["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:
        facts["driver"] = f"not told by NVML ({error})"
    facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps(facts))
"""


def fits(wheel: str, minor: int) -> bool:
    """Whether a wheel of this name is for Python 3.``minor``."""
    python, abi = wheel.removesuffix(".whl").split("-")[-3:-1]
    return "py3" in python.split(".") or abi == "abi3" or python == f"cp3{minor}"


def unpack(kit: Path, site: Path) -> list[str]:
    """Unpacks the kit's wheels, which are zip files that need no more than that.

    Returns:
        Their names.

    Raises:
        SystemExit: They are not for this Python.
    """
    wheels = sorted((kit / "wheels").glob("*.whl"))
    minor = sys.version_info.minor
    others = [wheel.name for wheel in wheels if not fits(wheel.name, minor)]
    if others:
        raise SystemExit(
            f"This is Python 3.{minor} ({sys.executable}), and the kit was made for another one "
            f"({', '.join(others)}). Start run.py with that Python, or make a kit for this one: "
            f"make gpu GPU_PYTHON=3.{minor}."
        )
    shutil.rmtree(site, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return [wheel.name for wheel in wheels]


def environment() -> dict[str, str]:
    """What the tests start with."""
    paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Plugins that this Python has of its own may not fit the kit's pytest.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return {**os.environ, **alone, "PYTHONPATH": os.pathsep.join(paths)}


def look() -> dict[str, Any]:
    """What this machine is.

    Raises:
        SystemExit: Its Python lacks torch or numpy, or they do not load.
    """
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise SystemExit(
            f"{sys.executable} cannot load torch and numpy ({words}), which the kit does not "
            "bring. Start run.py with the Python that has them."
        )
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def pytest(arguments: list[str], records: Path | None, seconds: float) -> int | None:
    """Runs pytest. Returns its exit code, None if it was not done in time; it prints to stderr."""
    variables = environment()
    if records is not None:
        variables["SPARKDL_GPU_RECORDS"] = str(records)
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-p", "pytest_timeout"]
    # What a newer torch warns of is to be seen, and is no failure here.
    command += ["-p", "no:cacheprovider", "-W", "default", "-o", "timeout=120", *arguments]
    process = subprocess.Popen(
        command, cwd=HERE / "project", env=variables, stdout=2, start_new_session=True
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            # Ranks are in sessions of their own, and end with the process that started them.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def report_of(records: list[dict[str, Any]], exit_code: int | None) -> dict[str, Any]:
    """What came of the tests, from the lines that they wrote."""
    tests = [record for record in records if record["kind"] == "test"]
    ended = {test["test"] for test in tests}
    for record in records:
        if record["kind"] == "started" and record["test"] not in ended:
            ended.add(record["test"])
            why = "it was not done in time" if exit_code is None else "its process died"
            tests.append({"test": record["test"], "outcome": "failed", "why": why})
    if exit_code not in (0, 1) and not any(test["outcome"] == "failed" for test in tests):
        what = "was not done in time" if exit_code is None else f"ended with {exit_code}"
        tests.append({"test": "pytest", "outcome": "failed", "why": f"{what}, see above"})
    figures = [record for record in records if record["kind"] == "figure"]
    return {"figures": figures, "tests": tests}


def tables(machine: dict[str, Any], report: dict[str, Any]) -> str:
    """The report, for people, as Markdown."""
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    driver = f", driver {machine['driver']}" if "driver" in machine else ""
    versions = f"torch {machine['torch']}, Python {machine['python']}"
    lines = [
        f"{gpus}{driver}; {versions}, {machine['cores']} cores",
        "",
        "| measured | figure | beside |",
        "|---|---|---|",
    ]
    lines += [
        f"| {one['name']} | {one['value']:.3g} {one['unit']} | {one['beside']} |"
        for one in report["figures"]
    ]
    by_outcome: dict[str, list[dict[str, Any]]] = {"passed": [], "failed": [], "skipped": []}
    for test in report["tests"]:
        by_outcome[test["outcome"]].append(test)
    passed, failed, left_out = by_outcome.values()
    lines += ["", f"{len(passed)} passed, {len(failed)} failed, {len(left_out)} left out"]
    for test in failed:
        lines += ["", f"FAILED {test['test']}:", test["why"]]
    reasons: dict[str, list[str]] = {}
    for test in left_out:
        reasons.setdefault(test["why"], []).append(test["test"].rpartition("/")[2])
    for reason, names in reasons.items():
        lines += ["", f"left out, {reason}:", *(f"  {name}" for name in names)]
    return "\n".join(lines)


def main() -> int:
    """Runs the tests and prints what came of them. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="say what is there, and run nothing")
    parser.add_argument("--report", type=Path, default=HERE / "report.json", help="the JSON's file")
    arguments, for_pytest = parser.parse_known_args()
    wheels = unpack(HERE, SITE)
    if arguments.list:
        print("\n".join(wheels))
        return int(pytest(["--collect-only", *for_pytest], None, SECONDS) != 0)
    machine = look()
    with tempfile.TemporaryDirectory(prefix="gpu-kit-") as temporary:
        records = Path(temporary, "records.jsonl")
        records.touch()
        # Of tests that write gigabytes, only what failed is kept, until the end.
        keep = ["--basetemp", str(Path(temporary, "tests")), "-o", "tmp_path_retention_policy=none"]
        exit_code = pytest([*keep, *for_pytest], records, SECONDS)
        lines = [json.loads(line) for line in records.read_text().splitlines()]
    report = report_of(lines, exit_code)
    print(tables(machine, report))
    text = json.dumps({"machine": machine, **report}, indent=1)
    arguments.report.write_text(text + "\n")
    print(f"\n{text}")
    return int(any(test["outcome"] == "failed" for test in report["tests"]))


if __name__ == "__main__":
    sys.exit(main())
