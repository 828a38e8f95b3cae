"""Importing is light, and imports run one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import sparkdl_runner

PACKAGE = Path(sparkdl_runner.__file__).parent
HEAVY = {"torch", "horovod", "pyspark", "mlflow", "petastorm"}

# From the bottom up: a module imports only from rows above its own.
LAYERS = [
    {"errors", "config", "network", "socket_owner", "resumable", "facts", "preemption"}
    | {"private_listener", "private_folder", "foreign_file"}
    | {"redaction", "host_metrics", "nearest", "build_horovod", "unwrapping", "importing"},
    {"filesystem", "world", "spark_context", "command_line", "wrong_backend", "gpu_memory"}
    | {"horovod_refusals", "other_users", "doors"},
    {
        "loader_plans",
        "reports",
        "control",
        "function",
        "serving",
        "lifeline",
        "vital_signs",
        "stacks",
        "memory_evidence",
        "rank_log",
        "unconfirmed",
    },
    {
        "departures",
        "store_relay",
        "torch_store",
        "driver_log",
        "outcome",
        "rendezvous",
        "gang",
        "slots",
        "frames",
        "worker_environment",
        "restarts",
        "encryption",
        "gpu_scheduling",
        "child_process",
    },
    {"backends", "sink", "spark_job", "spark_failure"},
    {"pulse", "watch", "output_relay", "rank_files", "rank_folder"},
    {"worker", "worker_process", "log_server", "console"},
    {"log_client"},
    {"agent", "local_launcher"},
    {"spark_launcher"},
    {"runner"},
    {"horovod_runner"},
    {"cli"},
    {"__main__"},
]


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@cache
def imported_modules(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_importing_the_package_imports_nothing_heavy():
    loaded = run_python("import sys, sparkdl_runner; print(*sys.modules)").split()
    assert not HEAVY & set(loaded)
    assert "asyncio" not in loaded


@pytest.mark.deadline
def test_importing_the_package_takes_less_than_150_milliseconds():
    code = (
        "import time; start = time.process_time()\n"
        "import sparkdl_runner; print(time.process_time() - start)"
    )
    assert any(float(run_python(code)) < 0.15 for _ in range(5))


def test_the_runners_and_the_local_launcher_import_neither_torch_nor_spark():
    loaded = run_python(
        "import sys\nfrom sparkdl_runner import *\n"
        "import sparkdl_runner.local_launcher, sparkdl_runner.agent\nprint(*sys.modules)"
    ).split()
    assert not HEAVY & set(loaded)


def test_the_driver_of_the_example_imports_neither_torch_nor_scikit_learn():
    code = "import sys\nfrom sparkdl_runner.examples.digits import frames, read_digits\n"
    loaded = run_python(f"{code}assert read_digits().shape == (1797, 65)\nprint(*sys.modules)")
    assert not (HEAVY | {"sklearn", "pandas"}) & set(loaded.split())


def test_the_worker_imports_no_pyspark():
    loaded = run_python("import sys, sparkdl_runner.worker; print(*sys.modules)").split()
    assert not HEAVY & set(loaded)


def test_every_public_name_is_there():
    for name in sparkdl_runner.__all__:
        assert getattr(sparkdl_runner, name) is not None
    assert set(sparkdl_runner.__all__) <= set(dir(sparkdl_runner))


def test_imports_run_one_way():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    level = {module: number for number, row in enumerate(LAYERS) for module in row}
    assert modules == level.keys(), "name every module of the package in LAYERS"
    for module in modules:
        for name in imported_modules(PACKAGE / f"{module}.py"):
            package, _, imported = name.partition(".")
            if package == "sparkdl_runner" and imported.split(".")[0] in level:
                imported = imported.split(".")[0]
                assert level[imported] < level[module], f"{module} must not import {imported}"


def test_what_launches_knows_nothing_of_data_and_the_other_way_round():
    shared = {"world", "errors", "config", "filesystem", "facts", "loader_plans", "foreign_file"}
    shared |= {"private_folder"}
    launching = set().union(*LAYERS) - shared
    for path in PACKAGE.glob("*.py"):
        assert not any(name.startswith("sparkdl_runner.data") for name in imported_modules(path))
    for path in PACKAGE.glob("data/*.py"):
        for name in imported_modules(path):
            assert name.removeprefix("sparkdl_runner.").split(".")[0] not in launching, path


def test_checkpoints_know_nothing_of_what_launches_nor_of_data():
    allowed = {"world", "errors", "filesystem", "resumable", "facts", "preemption", "checkpoint"}
    allowed |= {"unwrapping", "foreign_file"}
    paths = list(PACKAGE.glob("checkpoint/*.py"))
    assert paths
    for path in paths:
        for name in imported_modules(path):
            package, _, imported = name.partition(".")
            if package == "sparkdl_runner" and imported and imported != "__version__":
                assert imported.split(".")[0] in allowed, f"{path} must not import {name}"
    for path in PACKAGE.glob("*.py"):
        assert not any(
            name.startswith("sparkdl_runner.checkpoint") for name in imported_modules(path)
        )


def test_tracking_knows_nothing_of_what_launches_nor_of_its_siblings():
    allowed = {"world", "errors", "config", "filesystem", "resumable", "facts", "redaction"}
    allowed |= {"reports", "tracking", "unwrapping", "importing", "private_folder", "__version__"}
    allowed |= {"foreign_file"}
    for path in PACKAGE.glob("tracking/*.py"):
        for name in imported_modules(path):
            package, _, imported = name.partition(".")
            if package == "sparkdl_runner" and imported:
                assert imported.split(".")[0] in allowed, f"{path} must not import {name}"


def test_nothing_imports_doctor_and_doctor_needs_little():
    """It must run where everything else is missing or broken."""
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name not in ("doctor", "scripts") and path.name != "cli.py":
            assert not any(
                name.startswith("sparkdl_runner.doctor") for name in imported_modules(path)
            ), path
    loaded = run_python(
        "import sys, sparkdl_runner.doctor.command, sparkdl_runner.doctor.session\n"
        "print(*sys.modules)"
    ).split()
    assert not (HEAVY | {"pyarrow", "numpy", "pydantic", "yaml", "cloudpickle"}) & set(loaded)


def test_what_doctor_sends_to_executors_imports_nothing_of_this_package():
    paths = list(PACKAGE.glob("doctor/scripts/*.py"))
    assert paths
    for path in [*paths, PACKAGE / "doctor" / "stage.py"]:
        imported = imported_modules(path, top_level_only=True)
        assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names, path


def test_nothing_but_the_command_line_knows_of_jobs():
    for path in PACKAGE.rglob("*.py"):
        is_above = path.parent.name == "jobs" or path.name == "cli.py"
        for name in imported_modules(path):
            assert is_above or not name.startswith("sparkdl_runner.jobs"), path


def test_importing_checkpoints_imports_nothing_heavy():
    loaded = run_python(
        "import sys, sparkdl_runner.checkpoint as c\nc.CheckpointManager\nprint(*sys.modules)"
    ).split()
    assert not (HEAVY | {"pyarrow", "numpy"}) & set(loaded)
