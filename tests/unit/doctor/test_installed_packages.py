"""What is made of versions, native libraries and GPUs of a host."""

from __future__ import annotations

from typing import Any

import pytest
from host_facts import HERE, facts, one, with_packages

from sparkdl_runner.doctor.findings import native as native_findings
from sparkdl_runner.doctor.findings import packages as package_findings
from sparkdl_runner.doctor.findings.finding import OK, PROBLEM, WARNING, Finding
from sparkdl_runner.doctor.scripts import host


def test_all_packages_fit():
    found = [
        package_findings.judge_python(facts(), HERE),
        *package_findings.judge_arrow(facts(), "3.5.9", HERE),
        package_findings.judge_mlflow(facts(), HERE),
        native_findings.judge_torch(facts(), HERE),
        *native_findings.judge_horovod(facts(), HERE, is_wanted=True, wants_gpus=False),
    ]
    assert {finding.status for finding in found} == {OK}
    assert {finding.where for finding in found} == {(HERE,)}


def test_arrow_too_old_for_spark_4():
    old = facts(needed_by_spark={"pyarrow": "18.0.0"})
    found = one(package_findings.judge_arrow(old, "4.3.0", HERE), "arrow")
    assert found.status == PROBLEM
    assert "pyarrow 14.0.2 is too old for Spark 4.3.0" in found.found
    assert "pip install 'pyarrow>=18.0.0'" in found.advice


@pytest.mark.parametrize(("package", "version"), [("pyarrow", "25.0.1"), ("numpy", "2.4.6")])
def test_what_is_too_new_for_petastorm(package, version):
    new = with_packages(**{package: version})
    found = one(package_findings.judge_arrow(new, "3.5.9", HERE), "petastorm")
    assert found.status == PROBLEM
    assert f"{package} {version} is too new for petastorm" in found.found
    assert "arrow engine" in found.advice


def test_petastorm_that_does_not_load():
    broken = facts(petastorm={"petastorm": {"error": "ImportError: no filesystem"}})
    found = one(package_findings.judge_arrow(broken, "3.5.9", HERE), "petastorm")
    assert "petastorm 0.12.1 does not load: ImportError: no filesystem" in found.found


@pytest.mark.parametrize(
    ("version", "status"), [("2.9.0", PROBLEM), ("2.12.2", PROBLEM), ("2.13", OK), ("4.0", WARNING)]
)
def test_versions_of_mlflow(version, status):
    assert package_findings.judge_mlflow(with_packages(mlflow=version), HERE).status == status


def test_another_torch_on_an_executor():
    answer = {"python": "3.11.9", "executable": "/p", "sparkdl_runner": "0.1.0"}
    there = with_packages(torch="2.12.0")
    found = one(package_findings.judge_same(facts(), answer, there, HERE))
    assert (found.check, found.status) == ("versions", PROBLEM)
    assert "torch is 2.12.0 here and 2.13.0+cpu on the driver" in found.found
    assert one(package_findings.judge_same(facts(), answer, facts(), HERE)).status == OK


def test_another_python_and_another_version_of_this_package_on_an_executor():
    answer = {"python": "3.12.1", "executable": "/usr/bin/python3", "sparkdl_runner": "0.0.9"}
    first, second = package_findings.judge_same(facts(), answer, None, HERE)
    assert first.check == "spark.python"
    assert "Python 3.12.1 (/usr/bin/python3), the driver 3.11.7" in first.found
    assert second.check == "versions"
    assert "sparkdl_runner is 0.0.9 here" in second.found


def test_a_torch_that_kills_its_process():
    broken = facts(native={"end": "it died of SIGILL"})
    found = native_findings.judge_torch(broken, HERE)
    assert found.status == PROBLEM
    assert "does not load: it died of SIGILL" in found.found


def test_a_torch_that_is_too_old():
    old = facts(native={"torch": {"version": "2.2.2", "cuda": "12.1", "gpus": 0}})
    found = native_findings.judge_torch(old, HERE)
    assert found.status == PROBLEM
    assert found.expected == "torch 2.3 or later, before 3"
    of_a_runtime = facts(native={"torch": {"version": "2.3.1", "cuda": "12.1", "gpus": 0}})
    assert native_findings.judge_torch(of_a_runtime, HERE).status == OK


@pytest.mark.parametrize(("is_wanted", "status"), [(True, PROBLEM), (False, WARNING)])
def test_no_horovod_matters_where_it_is_wanted(is_wanted, status):
    without = with_packages(horovod=None)
    found = native_findings.judge_horovod(without, HERE, is_wanted=is_wanted, wants_gpus=False)
    assert one(found).status == status


def horovod_build(wants_gpus: bool = False, **changes: Any) -> Finding:
    found = native_findings.judge_horovod(
        facts(**changes), HERE, is_wanted=True, wants_gpus=wants_gpus
    )
    return one(found, "horovod.build")


@pytest.mark.parametrize("folder", ["", "pip-wheels", "cp311-torch2.13.0-cpu-r1"])
def test_a_horovod_that_was_not_built_by_our_script_forgets_its_interface(folder):
    found = horovod_build(horovod_record={"wheel_folder": folder})
    assert found.status == WARNING
    assert "HOROVOD_GLOO_IFACE" in found.advice
    loopback = horovod_build(horovod_record={}, name={"name": "b", "leads_to": "127.0.1.1"})
    assert "name b leads to the loopback" in loopback.found


def test_a_horovod_without_nccl_for_gpus():
    found = horovod_build(wants_gpus=True)
    assert found.status == PROBLEM
    assert "sparkdl-runner build-horovod --gpu" in found.advice


def gpus(*names: str, **changes: Any) -> dict[str, Any]:
    rows = [
        {"index": str(at), "uuid": f"GPU-{at}", "name": name, "driver_version": "470.42"}
        for at, name in enumerate(names)
    ]
    return facts(gpus={"gpus": rows, **changes})


def test_one_host_without_a_gpu():
    found = one(native_findings.judge_gpus(facts(), HERE, expected=False, others_have=True))
    assert found.status == PROBLEM
    assert "there is no nvidia-smi" in found.found
    assert one(native_findings.judge_gpus(facts(), HERE, expected=False)).status == OK


def test_spark_gives_more_gpus_than_there_are():
    seen = gpus("T4")
    seen["native"]["torch"] = {"version": "2.13.0", "cuda": "12.8", "gpus": 1}
    found = one(native_findings.judge_gpus(seen, HERE, expected=True, given=["0", "1"]))
    assert found.status == PROBLEM
    assert "Spark gave 2 GPUs" in found.found
    assert "discovery script" in found.advice


def test_mig_instances_of_which_a_rank_would_see_one():
    seen = gpus("H200")
    seen["native"]["torch"] = {"version": "2.13.0", "cuda": "12.8", "gpus": 1}
    instances = ["MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-cba663e8-9bed-5b25-b243"]
    found = one(native_findings.judge_gpus(seen, HERE, expected=True, given=instances))
    assert found.status == WARNING
    assert "Spark gave 2 GPUs" in found.found
    assert all(name in found.found for name in instances)
    assert "one rank there" in found.advice
    alone = one(native_findings.judge_gpus(seen, HERE, expected=True, given=instances[:1]))
    assert alone.status == OK


def test_a_driver_that_is_too_old_for_torch():
    seen = gpus("T4")
    reason = "The NVIDIA driver on your system is too old (found version 11040)"
    seen["native"]["torch"] = {
        "version": "2.13.0", "cuda": "12.8", "gpus": 0, "gpu_error": reason,
    }  # fmt: skip
    found = one(native_findings.judge_gpus(seen, HERE, expected=True), "gpu.torch")
    assert found.status == PROBLEM
    assert reason in found.found
    assert "driver 470.42 is probably older than CUDA 12.8 needs" in found.advice


def test_what_the_installed_spark_needs_is_known():
    assert host.needed_by_spark().keys() == {"numpy", "pandas", "pyarrow"}
