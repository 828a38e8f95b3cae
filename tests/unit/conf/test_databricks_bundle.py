"""The Databricks bundle fits the models of Databricks' own package, and what it names is there."""

from __future__ import annotations

import configparser
import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.experiments import MlflowExperiment
from databricks.bundles.jobs import Job

ROOT = Path(__file__).parents[3]
BUNDLE = yaml.safe_load((ROOT / "databricks.yml").read_text())
INCLUDED = sorted(path for pattern in BUNDLE["include"] for path in ROOT.glob(pattern))
TARGETS = sorted(BUNDLE["targets"])

# What the command line has to be given, and what only a workspace knows.
GIVEN = {
    "volume": "/Volumes/main/training/files",
    "cpu_node_type": "m6i.xlarge",
    "gpu_node_type": "g5.xlarge",
}
WORKSPACE = {
    "workspace.file_path": "/Workspace/Users/one@example.com/.bundle/sparkdl-runner/dev/files",
    "workspace.current_user.userName": "one@example.com",
}

# Databricks' reference of bundle settings; its own check of them is in no Python package.
TOP_LEVEL = {"bundle", "include", "variables", "artifacts", "sync", "targets", "resources"}
KEYS = {
    "bundle": {"name"},
    "variables.*": {"description", "default"},
    "artifacts.*": {"type", "path", "build"},
    "sync": {"exclude"},
    "targets.*": {"mode", "default", "workspace", "variables"},
    "targets.*.workspace": {"root_path"},
    "resources": {"experiments", "jobs"},
}


def merged() -> dict[str, Any]:
    """The bundle with what it includes."""
    whole = copy.deepcopy(BUNDLE)
    for path in INCLUDED:
        for key, value in yaml.safe_load(path.read_text()).items():
            assert key not in whole, f"{path.name} has another {key}"
            whole[key] = value
    return whole


def values_of(target: str) -> dict[str, Any]:
    """What each reference stands for, in a target."""
    found = {f"var.{name}": one.get("default") for name, one in BUNDLE["variables"].items()}
    found |= {f"var.{name}": value for name, value in GIVEN.items()}
    found |= {
        f"var.{name}": value
        for name, value in BUNDLE["targets"][target].get("variables", {}).items()
    }
    names = {"bundle.name": BUNDLE["bundle"]["name"], "bundle.target": target}
    for kind, resources in merged()["resources"].items():
        for key, resource in resources.items():
            names[f"resources.{kind}.{key}.name"] = resource["name"]
    return {**WORKSPACE, **names, **found}


def interpolated(value: Any, values: dict[str, Any]) -> Any:
    """The value with every ``${reference}`` replaced.

    Raises:
        KeyError: There is no such variable.
    """
    if isinstance(value, dict):
        return {key: interpolated(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [interpolated(one, values) for one in value]
    if not isinstance(value, str):
        return value
    alone = re.fullmatch(r"\$\{([\w.]+)\}", value)
    if alone:
        return interpolated(values[alone[1]], values)
    return re.sub(
        r"\$\{([^}]+)\}", lambda found: str(interpolated(values[found[1]], values)), value
    )


def job(target: str = "dev") -> dict[str, Any]:
    (found,) = merged()["resources"]["jobs"].values()
    return interpolated(found, values_of(target))


def task(kind: str) -> dict[str, Any]:
    (found,) = [one[kind] for one in job()["tasks"] if kind in one]
    return found


def named(path: str) -> Path:
    """A path of the job, which counts from the file that it is in."""
    (file,) = INCLUDED
    return (file.parent / path).resolve()


def test_keys_are_those_of_a_bundle():
    whole = merged()
    assert whole.keys() == TOP_LEVEL
    for pattern, allowed in KEYS.items():
        found = [whole]
        for part in pattern.split("."):
            found = [
                value
                for one in found
                for value in (one.values() if part == "*" else [one[part]] if part in one else [])
            ]
        assert found, pattern
        for one in found:
            assert one.keys() <= allowed, pattern


@pytest.mark.parametrize("target", TARGETS)
def test_the_job_fits_databricks_own_models(target):
    described = Job.from_dict(job(target))
    assert [one.task_key for one in described.tasks] == ["notebook", "doctor", "train"]
    workers = {one.new_cluster.num_workers for one in described.job_clusters}
    assert workers == {{"dev": 2, "prod": 8}[target]}


def test_references_are_typed_as_databricks_types_them():
    """Before they are replaced, as Databricks' command line reads them."""
    (raw,) = merged()["resources"]["jobs"].values()
    assert Job.from_dict(raw).job_clusters[0].new_cluster.spark_version.path == (
        "var.classic_runtime"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_the_experiment_fits_databricks_own_models(target):
    (raw,) = merged()["resources"]["experiments"].values()
    described = MlflowExperiment.from_dict(interpolated(raw, values_of(target)))
    assert described.name == f"/Users/one@example.com/sparkdl-runner-{target}"


def test_a_misspelt_key_would_be_found():
    wrong = job()
    wrong["job_clusters"][0]["new_cluster"]["num_worker"] = 2
    with pytest.raises(ValueError, match="num_worker"):
        Job.from_dict(wrong)


def test_every_variable_is_used_described_and_given():
    text = "".join(path.read_text() for path in [ROOT / "databricks.yml", *INCLUDED])
    for name, variable in BUNDLE["variables"].items():
        assert f"${{var.{name}}}" in text, name
        assert variable["description"]
        if "default" not in variable:
            assert f"--var {name}=" in text, f"say how to give {name}"


def test_tasks_run_on_clusters_that_the_job_has():
    clusters = {one["job_cluster_key"] for one in job()["job_clusters"]}
    assert {one["job_cluster_key"] for one in job()["tasks"]} == clusters


def test_clusters_can_start_barrier_stages_and_build_horovod():
    for one in job()["job_clusters"]:
        cluster = one["new_cluster"]
        assert "autoscale" not in cluster
        assert cluster["data_security_mode"] == "SINGLE_USER"
        assert cluster["spark_env_vars"]["SPARKDL_RUNNER_WHEELHOUSE"].startswith("/Volumes/")
        assert cluster["spark_env_vars"]["SPARKDL_RUNNER_TRUST_WHEELHOUSE"] == "1"
        on_gpus = "-gpu-" in cluster["spark_version"]
        assert (cluster["spark_env_vars"].get("HOROVOD_GPU_OPERATIONS") == "NCCL") is on_gpus
        (script,) = cluster["init_scripts"]
        path = script["workspace"]["destination"].removeprefix(
            WORKSPACE["workspace.file_path"] + "/"
        )
        assert (ROOT / path).stat().st_mode & 0o111, path


def test_what_is_named_is_there_and_is_sent():
    notebook = named(task("notebook_task")["notebook_path"])
    assert notebook.read_text().startswith("# Databricks notebook source\n")
    script = named(task("spark_python_task")["python_file"])
    for path in (notebook, script, ROOT / "conf" / "horovod" / "build.sh"):
        relative = path.relative_to(ROOT)
        assert not any(relative.match(pattern) for pattern in BUNDLE["sync"]["exclude"]), relative


def test_the_wheel_is_built_where_the_tasks_look_for_it():
    (artifact,) = BUNDLE["artifacts"].values()
    folder = re.search(r"--wheel-dir (\S+)", artifact["build"])[1]
    for one in job()["tasks"]:
        (wheel,) = [library["whl"] for library in one["libraries"] if "whl" in library]
        assert named(wheel).parent == ROOT / artifact["path"] / folder
        assert named(wheel).name == "*.whl"


def test_libraries_are_what_the_extras_ask_for_and_never_pyspark():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    asked = {
        line.replace(" ", "") for name in ("mlflow", "jobs") for line in extras[name].splitlines()
    }
    for one in job()["tasks"]:
        packages = [library["pypi"]["package"] for library in one["libraries"] if "pypi" in library]
        assert packages
        assert set(packages) <= asked
    text = "\n".join(path.read_text() for path in [ROOT / "databricks.yml", *INCLUDED])
    code = re.sub(r"#.*", "", text)
    assert "pyspark" not in code
    assert "[spark]" not in code


def test_the_entry_point_exists_and_takes_the_parameters(capsys):
    wheel = task("python_wheel_task")
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert wheel["package_name"] == setup["metadata"]["name"].replace("-", "_")
    scripts = dict(
        line.replace(" ", "").split("=")
        for line in setup["options.entry_points"]["console_scripts"].strip().splitlines()
    )
    module, _, function = scripts[wheel["entry_point"]].partition(":")
    main = getattr(__import__(module, fromlist=[function]), function)
    with pytest.raises(SystemExit) as ended:
        main([*wheel["parameters"], "--help"])
    assert ended.value.code == 0
    assert wheel["parameters"][0] in capsys.readouterr().out


# jobs/train.py, up to where it would begin.
READ_AND_PRINT = """
import sys
from dataclasses import replace
from sparkdl_runner.jobs import train
from sparkdl_runner.jobs.parsing import command
job = replace(train.JOB, run=lambda settings: print(settings.model_dump_json()) or {})
sys.exit(command.main(job, sys.argv[1:]))
"""


@pytest.mark.parametrize("target", TARGETS)
def test_the_training_takes_its_parameters(target):
    (found,) = [one for one in job(target)["tasks"] if one["task_key"] == "train"]
    parameters = [str(one) for one in found["spark_python_task"]["parameters"]]
    done = subprocess.run(
        [sys.executable, "-c", READ_AND_PRINT, *parameters],
        capture_output=True,
        text=True,
        check=True,
    )
    settings = json.loads(done.stdout)
    assert settings["num_proc"] == {"dev": 2, "prod": 8}[target]
    assert settings["checkpoint_url"] == "/Volumes/main/training/files/checkpoints"
    assert settings["tracking"]["experiment"] == f"/Users/one@example.com/sparkdl-runner-{target}"
