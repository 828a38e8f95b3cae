"""What is made of a host's disks and limits, and of the network between hosts."""

from __future__ import annotations

import dataclasses

import pytest
from host_facts import GIB, answer, executor, one, place

from sparkdl_runner.doctor.findings import network, resources
from sparkdl_runner.doctor.findings.checks import HOST
from sparkdl_runner.doctor.findings.finding import NOT_CHECKED, OK, PROBLEM, WARNING


def test_a_healthy_host():
    assert {finding.status for finding in HOST.run(place())} == {OK}


@pytest.mark.parametrize(
    ("directory", "status"),
    [
        ({"free_bytes": 50 * GIB}, OK),
        ({"free_bytes": GIB}, WARNING),
        ({"free_bytes": 1 << 20}, PROBLEM),
        ({"free_bytes": 50 * GIB, "free_inodes": 0}, PROBLEM),
        ({"free_bytes": 50 * GIB, "error": "OSError: Read-only file system"}, PROBLEM),
        ({"error": "FileNotFoundError: No such file or directory"}, PROBLEM),
    ],
)
def test_space(directory, status):
    seen = place(directories={"/data": {"purpose": "temporary files", **directory}})
    found = one(resources.disk(seen))
    assert (found.check, found.status) == ("disk", status)
    assert found.expected == ("" if status == OK else "2 GiB free or more")
    assert "/data (temporary files)" in found.found


@pytest.mark.parametrize(
    ("check", "changes", "advice"),
    [
        (resources.shared_memory, {"shared_memory": {"free_bytes": 64 << 20}}, "--shm-size"),
        (resources.shared_memory, {"shared_memory": None}, "--shm-size"),
        (resources.memory, {"memory": {"available_bytes": 1 << 20}}, "memoryOverhead"),
        (
            resources.memory,
            {"memory": {"available_bytes": 8 * GIB, "limit_bytes": GIB, "used_bytes": GIB - 5}},
            "memoryOverhead",
        ),
        (resources.open_files, {"open_files": 256}, "ulimit -n"),
    ],
)
def test_limits(check, changes, advice):
    found = one(check(place(**changes)))
    assert found.status == WARNING
    assert advice in found.advice


def test_where_no_host_has_shared_memory_none_is_missed():
    found = one(resources.shared_memory(place(system="Darwin", shared_memory=None)))
    assert (found.status, "Darwin" in found.found) == (NOT_CHECKED, True)


def test_a_folder_that_is_each_hosts_own():
    folders = {"/checkpoints": {"seen": False}}
    found = one(resources.folder(executor({"folders": folders})))
    assert found.status == PROBLEM
    assert "not the driver's" in found.found
    assert "shared storage" in found.advice
    assert one(resources.folder(place(folders=folders))).status == OK


@pytest.mark.parametrize(
    ("ahead", "status", "says"),
    [
        (0.2, OK, "agrees"),
        (-42.0, WARNING, "42 s behind"),
        (900.0, PROBLEM, "900 s ahead"),
        (-900.0, PROBLEM, "900 s behind"),
        (None, NOT_CHECKED, "not reached"),
    ],
)
def test_clocks(ahead, status, says):
    found = one(network.clock(executor(driver={"seconds_ahead": ahead})))
    assert found.status == status
    assert says in found.found


def test_a_driver_that_an_executor_cannot_reach():
    blocked = executor(driver={"error": "no answer", "to": "10.0.0.1:4711"})
    found = one(network.driver(blocked))
    assert found.status == PROBLEM
    assert "cannot reach the driver's log channel at 10.0.0.1:4711" in found.found
    assert "spark.driver.host" in found.advice


def test_an_executor_that_would_use_the_loopback():
    others = {"10.0.0.3 (10.0.0.3:1)": {"seconds_ahead": 0.0}}
    found = one(network.address(executor(address="127.0.0.1:1", peers=others)))
    assert found.status == PROBLEM
    assert "SPARK_LOCAL_IP" in found.advice
    assert one(network.address(executor(peers=others))).status == OK
    assert one(network.address(executor(address="127.0.0.1:1"))).status == OK


def names(*answers):
    return one(network.names({"single_host": False, "stage": {"hosts": list(answers)}}))


def test_two_hosts_of_one_name_are_told_apart_by_their_addresses():
    found = names(answer("10.0.0.2:1"), answer("10.0.0.3:1"))
    assert found.status == WARNING
    assert "2 hosts are called b: 10.0.0.2, 10.0.0.3" in found.found


def test_two_executors_of_one_host_share_no_name_with_another():
    assert names(answer("10.0.0.2:1"), answer("10.0.0.2:2")).status == OK


@pytest.mark.parametrize(
    ("name", "on_cluster", "status"),
    [
        ({"name": "b", "leads_to": "127.0.1.1"}, True, WARNING),
        ({"name": "b", "leads_to": "127.0.1.1"}, False, OK),
        ({"name": "b", "error": "Name or service not known"}, True, WARNING),
        ({"name": "b", "leads_to": "10.0.0.2"}, True, OK),
    ],
)
def test_where_a_hosts_name_leads(name, on_cluster, status):
    seen = dataclasses.replace(place(name=name), on_cluster=on_cluster)
    assert one(network.name(seen)).status == status
