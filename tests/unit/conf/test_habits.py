"""What contributors' tools read calls this project's own commands, and names what is there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from sparkdl_runner.base.version import __version__

ROOT = Path(__file__).parents[3]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
CONSTRAINTS = (ROOT / "conf" / "constraints-classic.txt").read_text()
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


def installed_by(text: str) -> set[str]:
    """The Debian packages that .ci/run installs where no Kubernetes is tried."""
    found = re.findall(r"packages\+=\(([^)]+)\)", text.partition("ENGINES")[0])
    found += re.findall(r"packages\+=\((python3[^)]*)\)", text)
    return {name for names in found for name in names.split()}


def test_workflows_run_targets_and_scripts_that_are_there() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    makes = [shlex.split(command)[1] for command in commands if command.startswith("make ")]
    assert len(makes) >= 3
    assert set(makes) <= TARGETS
    assert ".ci/run" in commands
    assert jobs["lanes"]["strategy"]["matrix"]["lane"] == ["classic", "modern"]


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_hooks_use_this_projects_tools(hook: dict[str, object]) -> None:
    program, *arguments = shlex.split(hook["entry"])
    assert hook["language"] == "system"
    if program == ".venv/bin/python":
        assert re.search(rf"^{arguments[1]}==", CONSTRAINTS, flags=re.MULTILINE)
    elif program == "make":
        assert set(arguments) <= TARGETS
    else:
        assert program == "shellcheck"


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["authors"] == [{"name": "sparkdl-runner contributors"}]


def test_the_container_of_contributors_has_what_tests_need() -> None:
    image = (ROOT / ".devcontainer" / "Dockerfile").read_text()
    missing = installed_by((ROOT / ".ci" / "run").read_text()) - set(image.split())
    assert missing == set()
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["build"] == {"dockerfile": "Dockerfile"}
    assert container["postCreateCommand"].split()[-1] in TARGETS
