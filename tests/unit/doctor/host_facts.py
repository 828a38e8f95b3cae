"""Facts of a healthy host, as ``scripts/host.py`` tells them, and what is asked of findings."""

from __future__ import annotations

from typing import Any

from sparkdl_runner.doctor.findings.finding import Finding

HERE = "executor 10.0.0.2:4000 (b)"
GIB = 1 << 30


def facts(**changes: Any) -> dict[str, Any]:
    """A healthy host's."""
    return {
        "python": "3.11.7",
        "executable": "/env/bin/python",
        "packages": {
            "sparkdl-runner": "0.1.0",
            "torch": "2.13.0+cpu",
            "horovod": "0.28.1",
            "pyarrow": "14.0.2",
            "numpy": "1.26.4",
            "petastorm": "0.12.1",
            "mlflow": "3.17.2",
        },
        "needed_by_spark": {"pyarrow": "4.0.0"},
        "horovod_record": {"torch": "2.13.0+cpu", "wheel_folder": "cp311-torch2.13.0+cpu-cpu-r2"},
        "name": {"name": "b", "leads_to": "10.0.0.2"},
        "directories": {"/tmp": {"purpose": "temporary files", "free_bytes": 50 * GIB}},
        "shared_memory": {"free_bytes": GIB},
        "memory": {"available_bytes": 8 * GIB},
        "open_files": 4096,
        "servers": {},
        "folders": {},
        "gpus": {"gpus": []},
        "native": {
            "torch": {"version": "2.13.0+cpu", "cuda": None, "gpus": 0},
            "horovod": {"gloo": True, "nccl": False, "cuda": False, "mpi": False, "rocm": False},
        },
        "petastorm": {"petastorm": {}},
        **changes,
    }


def with_packages(**changes: str | None) -> dict[str, Any]:
    """A host's with other versions; None for not installed."""
    packages = {**facts()["packages"], **changes}
    return facts(packages={name: version for name, version in packages.items() if version})


def one(findings: Any, check: str | None = None) -> Finding:
    found = [findings] if isinstance(findings, Finding) else list(findings)
    if check is not None:
        found = [finding for finding in found if finding.check == check]
    assert len(found) == 1, found
    return found[0]
