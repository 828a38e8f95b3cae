"""What is made of versions, native libraries and GPUs of a host."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from host_facts import executor, facts, one, place, with_packages

from sparkdl_runner import __version__
from sparkdl_runner.doctor.findings import gpus, native, packages
from sparkdl_runner.doctor.findings.checks import EXECUTOR, PYTHON, Place
from sparkdl_runner.doctor.findings.finding import OK, PROBLEM, WARNING
from sparkdl_runner.doctor.question import Question
from sparkdl_runner.doctor.scripts import host


def test_all_packages_fit():
    assert {finding.status for finding in PYTHON.run(place())} == {OK}


def test_arrow_too_old_for_spark_4():
    old = dataclasses.replace(place(needed_by_spark={"pyarrow": "18.0.0"}), spark_version="4.3.0")
    found = one(packages.arrow(old))
    assert found.status == PROBLEM
    assert "pyarrow 14.0.2 is too old for Spark 4.3.0" in found.found
    assert "pip install 'pyarrow>=18.0.0'" in found.advice


@pytest.mark.parametrize(("package", "version"), [("pyarrow", "25.0.1"), ("numpy", "2.4.6")])
def test_what_is_too_new_for_petastorm(package, version):
    found = one(packages.petastorm(with_packages(**{package: version})))
    assert found.status == PROBLEM
    assert f"{package} {version} is too new for petastorm" in found.found
    assert "arrow engine" in found.advice


def test_petastorm_that_does_not_load():
    broken = place(petastorm={"petastorm": {"error": "ImportError: no filesystem"}})
    found = one(packages.petastorm(broken))
    assert "petastorm 0.12.1 does not load: ImportError: no filesystem" in found.found


@pytest.mark.parametrize(
    ("version", "status"), [("2.9.0", PROBLEM), ("2.12.2", PROBLEM), ("2.13", OK), ("4.0", WARNING)]
)
def test_versions_of_mlflow(version, status):
    assert one(packages.mlflow(with_packages(mlflow=version))).status == status


def test_an_executor_like_the_driver():
    assert {finding.status for finding in EXECUTOR.run(executor())} <= {OK, "not checked"}
    assert one(packages.same_packages(executor())).found == "Python and packages are the driver's"


def test_another_torch_on_an_executor():
    there = executor(with_packages(torch="2.12.0").facts)
    found = one(packages.same_packages(there))
    assert (found.check, found.status) == ("versions", PROBLEM)
    assert "torch is 2.12.0 here and 2.13.0+cpu on the driver" in found.found


def test_another_version_of_this_package_on_an_executor():
    other = executor(sparkdl_runner="0.0.9")
    found = one(packages.same_packages(other))
    assert f"sparkdl_runner is 0.0.9 here and {__version__} on the driver" in found.found


def test_a_torch_that_kills_its_process():
    found = one(native.torch(place(native={"end": "it died of SIGILL"})))
    assert found.status == PROBLEM
    assert "does not load: it died of SIGILL" in found.found


@pytest.mark.parametrize(
    ("version", "status"), [("2.2.2", PROBLEM), ("2.3.1", OK), ("3.0.0", WARNING)]
)
def test_versions_of_torch(version, status):
    told = {"torch": {"version": version, "cuda": "12.1", "gpus": 0}}
    found = one(native.torch(place(native=told)))
    assert found.status == status
    assert status == OK or found.expected == "torch 2.3 or later, before 3"


@pytest.mark.parametrize(
    ("backends", "status"), [(("horovod",), PROBLEM), (("horovod", "torch"), WARNING)]
)
def test_no_horovod_matters_where_it_is_wanted(backends, status):
    without = with_packages(horovod=None)
    without = dataclasses.replace(without, question=Question(backends=backends))
    assert one(native.horovod(without)).status == status


NO_TENSORFLOW = "ModuleNotFoundError: No module named 'tensorflow'"


@pytest.mark.parametrize(
    ("backends", "told", "status"),
    [
        (("tensorflow",), {"version": "2.21.0"}, OK),
        (("tensorflow",), {"version": "2.9.1"}, PROBLEM),
        (("tensorflow",), {"error": NO_TENSORFLOW}, PROBLEM),
        (("horovod", "torch", "tensorflow"), {"error": NO_TENSORFLOW}, None),
        (("horovod", "torch", "tensorflow"), {"error": "ImportError: libtpu.so"}, PROBLEM),
        (("horovod", "torch"), {}, None),
    ],
)
def test_tensorflow_is_looked_at_where_ranks_may_use_it(backends, told, status):
    found = native.tensorflow(place(Question(backends=backends), native={"tensorflow": told}))
    assert [one.status for one in found] == [status] * (status is not None)


def test_ranks_of_tensorflow_need_no_torch():
    without = {"packages": {}, "native": {"torch": {"error": "no module"}}}
    assert native.torch(place(Question(backends=("tensorflow",)), **without)) == []
    assert one(native.torch(place(Question(backends=("torch",)), **without))).status == PROBLEM


@pytest.mark.parametrize("folder", ["", "pip-wheels", "cp311-torch2.13.0-cpu-r1"])
def test_a_horovod_that_was_not_built_by_our_script_forgets_its_interface(folder):
    found = one(native.horovod_build(place(horovod_record={"wheel_folder": folder})))
    assert found.status == WARNING
    assert "HOROVOD_GLOO_IFACE" in found.advice
    loopback = place(horovod_record={}, name={"name": "b", "leads_to": "127.0.1.1"})
    assert "name b leads to the loopback" in one(native.horovod_build(loopback)).found


def test_a_horovod_without_nccl_for_gpus():
    found = one(native.horovod_build(place(Question(backends=("horovod",), gpus=True))))
    assert found.status == PROBLEM
    assert "sparkdl-runner build-horovod --gpu" in found.advice


def with_gpu(name: str, *, given: tuple[str, ...] = (), **torch: Any) -> Place:
    """An executor with a GPU, to which Spark has given some, and what torch says of them."""
    row = {"index": "0", "uuid": "GPU-0", "name": name, "driver_version": "470.42"}
    told = {"torch": {"version": "2.13.0", "cuda": "12.8", "gpus": 1, **torch}}
    seen = facts(gpus={"gpus": [row]}, native=told)
    return dataclasses.replace(executor(seen, gpus_given=given), spark_gives_gpus=True)


def test_one_host_without_a_gpu():
    found = one(gpus.gpu(dataclasses.replace(place(), some_have_gpus=True)))
    assert found.status == PROBLEM
    assert "there is no nvidia-smi" in found.found
    assert one(gpus.gpu(place())).status == OK


def test_spark_gives_more_gpus_than_there_are():
    found = one(gpus.gpu(with_gpu("T4", given=("0", "1"))))
    assert found.status == PROBLEM
    assert "Spark gave 2 GPUs" in found.found
    assert "discovery script" in found.advice


def test_mig_instances_of_which_a_rank_would_see_one():
    instances = ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-cba663e8-9bed-5b25-b243")
    found = one(gpus.gpu(with_gpu("H200", given=instances)))
    assert found.status == WARNING
    assert "Spark gave 2 GPUs" in found.found
    assert all(name in found.found for name in instances)
    assert "one rank there" in found.advice
    assert one(gpus.gpu(with_gpu("H200", given=instances[:1]))).status == OK


def test_a_driver_that_is_too_old_for_torch():
    reason = "The NVIDIA driver on your system is too old (found version 11040)"
    found = one(gpus.torch_sees_them(with_gpu("T4", gpus=0, gpu_error=reason)))
    assert (found.check, found.status) == ("gpu.torch", PROBLEM)
    assert reason in found.found
    assert "driver 470.42 is probably older than CUDA 12.8 needs" in found.advice


def test_what_the_installed_spark_needs_is_known():
    assert host.needed_by_spark().keys() == {"numpy", "pandas", "pyarrow"}
