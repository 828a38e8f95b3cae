"""Importing is light, and imports run one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import sparkdl_runner

PACKAGE = Path(sparkdl_runner.__file__).parent
HEAVY = {"torch", "tensorflow", "horovod", "pyspark", "mlflow", "petastorm"}

# Each of these is of use without the others, and without anything that launches.
BESIDE_ONE_ANOTHER = {"data", "tracking", "checkpoint"}
FOR_ALL = {"base", "errors", "rank", "tensors"}


def levels() -> dict[str, int]:
    """The height of each folder in the table of docs/design.md, whose last row is the ground."""
    text = (PACKAGE.parent / "docs" / "design.md").read_text()
    table = text.partition("| folder | holds |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.strip().splitlines()[1:]]
    return {
        name.replace("/", "."): height
        for height, row in enumerate(reversed(rows))
        for name in re.findall(r"`([^`]+)`", row)
    }


LEVEL = levels()


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


def test_importing_the_package_imports_few_modules():
    """The milliseconds that it takes are those of its modules."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import sparkdl_runner; print(*set(sys.modules) - before)"
    )
    assert len(run_python(code).split()) <= 20


def test_the_runners_and_the_local_launcher_import_neither_torch_nor_spark():
    loaded = run_python(
        "import sys\nfrom sparkdl_runner import *\n"
        "import sparkdl_runner.launch.driver.local_launcher\n"
        "import sparkdl_runner.launch.agent.rank_task\n"
        "print(*sys.modules)"
    ).split()
    assert not HEAVY & set(loaded)


def test_the_driver_of_the_example_imports_neither_torch_nor_scikit_learn():
    code = "import sys\nfrom sparkdl_runner.examples.digits import frames, read_digits\n"
    loaded = run_python(f"{code}assert read_digits().shape == (1797, 65)\nprint(*sys.modules)")
    assert not (HEAVY | {"sklearn", "pandas"}) & set(loaded.split())


def test_the_worker_imports_no_pyspark():
    loaded = run_python(
        "import sys, sparkdl_runner.launch.worker.__main__; print(*sys.modules)"
    ).split()
    assert not HEAVY & set(loaded)


def test_every_public_name_is_there():
    for name in sparkdl_runner.__all__:
        assert getattr(sparkdl_runner, name) is not None
    assert set(sparkdl_runner.__all__) <= set(dir(sparkdl_runner))


def name_of(path: Path) -> str:
    """A module's name within the package; a package has its own."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str | None:
    """The entry of the table that a module belongs to: the longest that it begins with."""
    names = module.split(".")
    for length in range(len(names), 0, -1):
        if (name := ".".join(names[:length])) in LEVEL:
            return name
    return None


def is_module(name: str) -> bool:
    place = PACKAGE / name.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").exists()


def imports_of(path: Path) -> set[str]:
    """The modules of this package that one of them imports, by their names within it."""
    found = set()
    for imported in imported_modules(path):
        package, _, name = imported.partition(".")
        if package != "sparkdl_runner":
            continue
        while name and not is_module(name):
            name = name.rpartition(".")[0]
        found.add(name)
    # A package's name alone comes with each import from a module of it.
    return {name for name in found if name and not any(one.startswith(f"{name}.") for one in found)}


def test_imports_run_one_way():
    for path in PACKAGE.rglob("*.py"):
        module = name_of(path)
        if module in ("", "__main__"):
            continue  # The package itself names what it loads when it is asked for it.
        own = part_of(module)
        assert own is not None, f"name {module} or its folder in docs/design.md"
        for imported in imports_of(path):
            part = part_of(imported)
            assert part is not None, f"{module} imports {imported}"
            assert part == own or LEVEL[part] < LEVEL[own], f"{module} must not import {imported}"


def test_data_tracking_and_checkpoints_know_neither_one_another_nor_what_launches():
    for package in BESIDE_ONE_ANOTHER:
        paths = list((PACKAGE / package).rglob("*.py"))
        assert paths
        for path in paths:
            for imported in imports_of(path):
                assert imported.split(".")[0] in {package, *FOR_ALL}, f"{path} imports {imported}"


def test_every_package_says_what_is_in_it():
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_nothing_imports_doctor_and_doctor_needs_little():
    """It must run where everything else is missing or broken."""
    for path in PACKAGE.rglob("*.py"):
        if not {"doctor", "cli"} & set(path.relative_to(PACKAGE).parts):
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
        is_above = {"jobs", "cli"} & set(path.relative_to(PACKAGE).parts)
        for name in imported_modules(path):
            assert is_above or not name.startswith("sparkdl_runner.jobs"), path


def test_importing_checkpoints_imports_nothing_heavy():
    loaded = run_python(
        "import sys, sparkdl_runner.checkpoint as c\nc.CheckpointManager\nprint(*sys.modules)"
    ).split()
    assert not (HEAVY | {"pyarrow", "numpy"}) & set(loaded)


def test_no_two_test_files_have_one_name():
    """pytest imports them by their names alone, and the second could not be collected."""
    files = list(Path(__file__).parents[1].rglob("test_*.py"))
    names = Counter(file.name for file in files)
    assert not {name for name, count in names.items() if count > 1}
