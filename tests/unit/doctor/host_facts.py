"""Facts of a healthy host, as ``scripts/host.py`` tells them, and what is asked of findings."""

from __future__ import annotations

from typing import Any

from sparkdl_runner import __version__
from sparkdl_runner.doctor.findings.checks import Place
from sparkdl_runner.doctor.findings.finding import Finding
from sparkdl_runner.doctor.question import Question

GIB = 1 << 30


def facts(**changes: Any) -> dict[str, Any]:
    """A healthy host's."""
    return {
        "python": "3.11.7",
        "executable": "/env/bin/python",
        "packages": {
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
        "system": "Linux",
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


def place(question: Question | None = None, **changes: Any) -> Place:
    """A driver on a cluster, of which some facts differ."""
    question = question or Question(backends=("horovod",))
    return Place(facts=facts(**changes), question=question, on_cluster=True, spark_version="3.5.9")


def with_packages(**changes: str | None) -> Place:
    """One with other versions; None for not installed."""
    packages = {**facts()["packages"], **changes}
    return place(packages={name: version for name, version in packages.items() if version})


def answer(address: str = "10.0.0.2:1", host: str = "b", **changes: Any) -> dict[str, Any]:
    """The facts that an executor sends."""
    return {
        "place": address,
        "host": host,
        "executable": "/usr/bin/python3",
        "sparkdl_runner": __version__,
        "address": address.partition(":")[0],
        "interface": "eth0",
        "driver": {"seconds_ahead": 0.0, "to": "10.0.0.1:4711"},
        "peers": {},
        **changes,
    }


def executor(seen: dict[str, Any] | None = None, **changes: Any) -> Place:
    """An executor of a cluster that says this of itself; its host is a healthy one's."""
    says = answer(**changes)
    return Place(facts=seen or facts(), driver=facts(), answer=says, on_cluster=True)


def one(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found
