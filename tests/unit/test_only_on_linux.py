"""What only Linux has is asked for in few places, each of which does without it elsewhere."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import sparkdl_runner

PACKAGE = Path(sparkdl_runner.__file__).parent
WITHOUT = Path(__file__).parents[1] / "without_linux"

# What asks for a name of Python's that macOS lacks. Each looks first whether it is there.
OF_NAMES = {
    "base/cores.py": {"sched_getaffinity"},
    "checkpoint/copies/holder.py": {"pidfd_open"},
    "checkpoint/copies/memory_copies.py": {"memfd_create", "pidfd_open"},
    "checkpoint/read/host_reader.py": {"memfd_create"},
    "data/remote/disk_cache.py": {"posix_fallocate"},
    "data/remote/memory_pool.py": {"MADV_HUGEPAGE"},
    "doctor/child.py": {"memfd_create"},
    "launch/agent/host/address_space.py": {"prlimit"},
    "launch/agent/spares/start_conditions.py": {"sched_getscheduler"},
    "launch/agent/template_process.py": {"memfd_create", "pidfd_open"},
    "launch/agent/worker_process.py": {"waitid"},
    "launch/preflight/host_facts.py": {"POSIX_FADV_DONTNEED", "posix_fadvise"},
    "launch/wire/socket_owner.py": {"AF_NETLINK"},
    "launch/worker/stacks.py": {"SIGRTMIN"},
    "launch/worker/template.py": {"pidfd_open", "waitid"},  # There are none elsewhere.
}
# What reads a folder that macOS lacks.
OF_FOLDERS = {
    "base/filesystem.py",
    "base/open_file.py",
    "base/processes.py",
    "base/this_host.py",
    "checkpoint/copies/memory_copies.py",
    "checkpoint/read/host_reader.py",
    "doctor/scripts/host.py",
    "jobs/parsing/yaml_file.py",
    "launch/agent/host/ec2_notice.py",
    "launch/agent/host/other_users.py",
    "launch/agent/memory_evidence.py",
    "launch/agent/spares/start_conditions.py",
    "launch/agent/vital_signs.py",
    "launch/backends/tensorflow_server.py",
    "launch/wire/socket_owner.py",
    "launch/worker/lifeline.py",
    "launch/worker/template.py",
    "launch/worker/unanswered.py",
    "rank/control_group.py",
    "rank/restart_memory.py",
}


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(WITHOUT))
    yield importlib.import_module("absent")
    del sys.modules["absent"]


def sources() -> dict[str, str]:
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}


def test_names_that_only_linux_has_are_used_in_few_files(absent) -> None:
    found = {}
    for name, text in sources().items():
        used = {
            node.attr
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in absent.NAMES.get(node.value.id, ())
        }
        if used:
            found[name] = used
    assert found == OF_NAMES


def test_folders_that_only_linux_has_are_read_in_few_files() -> None:
    # Sentences for people may name them.
    said = re.compile(r"""["'](?:/proc|/sys)\b[^ ]*["']""")
    assert {name for name, text in sources().items() if said.search(text)} == OF_FOLDERS
