"""What a worker finds in its environment."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

import sparkdl_runner
from sparkdl_runner import RunConfig
from sparkdl_runner.launch.agent.worker_environment import (
    driver_search_path,
    driver_variables,
    worker_environment,
)
from sparkdl_runner.launch.backends.environment import beside_own
from sparkdl_runner.launch.worker.search_path import (
    LATER_PATH,
    complete_search_path,
    extra_search_path,
    search_path_for_children,
)
from sparkdl_runner.tracking.run import parameters_and_tags


def test_threads_are_those_of_the_task_unless_someone_has_chosen(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert worker_environment(threads=4, variables={})["OMP_NUM_THREADS"] == "4"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert worker_environment(threads=4, variables={})["OMP_NUM_THREADS"] == "1"
    assert worker_environment(threads=4, variables={}, overrule=True)["OMP_NUM_THREADS"] == "4"
    chosen = worker_environment(threads=4, variables={"OMP_NUM_THREADS": "3"}, overrule=True)
    assert chosen["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("name", ["PYTHON_WORKER_FACTORY_SECRET", "PYSPARK_GATEWAY_SECRET"])
def test_secrets_of_spark_stay_out(monkeypatch, name):
    monkeypatch.setenv(name, "s3cret")
    assert name not in worker_environment(threads=1, variables={})
    assert name not in driver_variables(["*"])


def test_a_rank_inherits_the_secrets_of_what_starts_it(monkeypatch):
    # Below a local master, and with a negative num_proc, these are the driver's.
    monkeypatch.setenv("MY_API_KEY", "s3cret")
    assert worker_environment(threads=1, variables={})["MY_API_KEY"] == "s3cret"
    assert "MY_API_KEY" not in driver_variables(None)


def test_only_what_comes_before_the_interpreters_packages_comes_before_them(monkeypatch, tmp_path):
    packages = sysconfig.get_path("purelib")
    ahead, behind = str(tmp_path / "a"), str(tmp_path / "behind")
    for folder in (ahead, behind):
        os.mkdir(folder)
    assert extra_search_path([ahead, packages, behind]) == [ahead]
    assert extra_search_path([ahead, behind]) == [ahead, behind]


def test_the_interpreters_own_places_and_what_is_gone_are_no_extra_ones(tmp_path):
    stdlib = sysconfig.get_path("stdlib")
    zipped, app = tmp_path / "python3.11.zip", tmp_path / "app.zip"
    for archive in (zipped, app):
        archive.touch()
    paths = [stdlib, f"{stdlib}/lib-dynload", str(zipped), str(tmp_path / "gone"), str(app)]
    assert extra_search_path(paths) == [str(app)]


def test_this_package_is_found_where_the_search_path_was_only_appended_to(monkeypatch, tmp_path):
    home = str(Path(sparkdl_runner.__file__).parents[1])
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert extra_search_path([str(tmp_path), "/behind", home]) == [home]
    (tmp_path / "project.pth").write_text(f"import sys\n{home}\n")
    assert extra_search_path([str(tmp_path), "/behind", home]) == []


def test_a_module_named_like_one_of_pythons_own_keeps_no_worker_from_starting(
    monkeypatch, tmp_path
):
    script, plain = tmp_path / "script", tmp_path / "plain"
    for folder in (script, plain):
        folder.mkdir()
    (script / "types.py").write_text("raise ImportError('not this one')")
    (plain / "test.py").touch()  # Of that name as well, and nobody imports it.
    own = [*sys.path]
    monkeypatch.setattr(sys, "path", [str(script), str(plain), *own])
    environment = worker_environment(threads=1, variables={})
    assert str(plain) in environment["PYTHONPATH"]
    assert str(script) not in environment["PYTHONPATH"]
    monkeypatch.setattr(sys, "path", own[:])
    monkeypatch.setenv(LATER_PATH, environment[LATER_PATH])
    complete_search_path()
    assert sys.path == [str(script), *own]
    assert LATER_PATH not in os.environ
    both = [str(script), str(plain)]
    assert str(script) not in search_path_for_children(both, both)
    assert str(plain) in search_path_for_children(both, both)
    # A folder that comes after the driver's installed packages must not come before a child's.
    behind = ["/x/site-packages", str(plain)]
    assert str(plain) not in search_path_for_children([str(plain)], behind)


@pytest.fixture
def variables(monkeypatch) -> None:
    for name in [*os.environ]:
        monkeypatch.delenv(name)
    for name in ("NCCL_DEBUG", "HOROVOD_SECRET_KEY", "MY_FLAG", "MY_TOKEN", "PYTHONPATH", "PATH"):
        monkeypatch.setenv(name, "/there")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (None, ["NCCL_DEBUG"]),
        ([], []),
        (["MY_*"], ["MY_FLAG", "MY_TOKEN"]),
        (("[A-O]*", "PATH"), ["HOROVOD_SECRET_KEY", "MY_FLAG", "MY_TOKEN", "NCCL_DEBUG", "PATH"]),
        ({"OTHER": "1"}, ["NCCL_DEBUG", "OTHER"]),
        ({"NCCL_DEBUG": "INFO"}, ["NCCL_DEBUG"]),
    ],
)
def test_ranks_get_what_the_driver_is_asked_to_give(asked, names):
    given = driver_variables(RunConfig(environment=asked).environment)
    assert sorted(given) == names
    explicit = asked if isinstance(asked, dict) else {}
    assert given == {name: explicit.get(name, "/there") for name in names}


def test_a_python_path_that_was_set_at_run_time_counts(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"/added{os.pathsep}/also")
    monkeypatch.setattr(sys, "path", ["/script", "/x/site-packages", "/behind"])
    assert driver_search_path() == ["/script", "/added", "/also", "/x/site-packages", "/behind"]


def test_values_are_in_no_tag_and_no_repr():
    config = RunConfig(environment={"MY_FLAG": "v4lue", "MY_TOKEN": "s3cret"})
    told = parameters_and_tags.tags({}, config.chosen(), None)
    assert ["tag", "sparkdl_runner.environment", "MY_FLAG, MY_TOKEN"] in told
    assert "s3cret" not in repr(config)
    assert "v4lue" not in repr(told)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("MY_*", "environment is a str; it must be a dict"),
        ([3], "environment is a list"),
        ({"A": 1}, r"environment\['A'\] is a int; it must be a text, in quotes"),
        ({"PYTHONPATH": "/x"}, "sys.path and PYTHONPATH"),
        ({"A=B": "x"}, "cannot be set"),
    ],
)
def test_what_is_no_environment_is_refused(value, words):
    with pytest.raises((TypeError, ValueError), match=words):
        RunConfig(environment=value)


def test_a_users_own_choice_stands_beside_a_backends_variables():
    needed = {
        "RANK": "1",
        "NCCL_SOCKET_IFNAME": "=eth1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "180",
    }
    assert beside_own(needed, {"RANK": "7", "HOME": "/"}) == needed
    own = {"NCCL_SOCKET_IFNAME": "ib0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    patient = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "900"}
    assert beside_own(needed, {**own, **patient}) == {"RANK": "1", **own, **patient}
    for seconds in ("30", "", "soon"):
        assert beside_own(needed, {"HOROVOD_GLOO_TIMEOUT_SECONDS": seconds}) == needed
