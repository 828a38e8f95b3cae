"""What is made of a host's disks and limits, and of the network between hosts."""

from __future__ import annotations

from typing import Any

import pytest
from host_facts import GIB, HERE, facts, one

from sparkdl_runner.doctor.findings import network as network_findings
from sparkdl_runner.doctor.findings import resources as resource_findings
from sparkdl_runner.doctor.findings.finding import NOT_CHECKED, OK, PROBLEM, WARNING


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
    seen = facts(directories={"/data": {"purpose": "temporary files", **directory}})
    found = one(resource_findings.judge_space(seen, HERE))
    assert found.status == status
    assert "/data (temporary files)" in found.found


@pytest.mark.parametrize(
    ("changes", "check", "advice"),
    [
        ({"shared_memory": {"free_bytes": 64 << 20}}, "shared_memory", "--shm-size"),
        ({"shared_memory": None}, "shared_memory", "--shm-size"),
        ({"memory": {"available_bytes": 1 << 20}}, "memory", "memoryOverhead"),
        (
            {"memory": {"available_bytes": 8 * GIB, "limit_bytes": GIB, "used_bytes": GIB - 5}},
            "memory",
            "memoryOverhead",
        ),
        ({"open_files": 256}, "open_files", "ulimit -n"),
    ],
)
def test_limits(changes, check, advice):
    found = one(resource_findings.judge_limits(facts(**changes), HERE), check)
    assert found.status == WARNING
    assert advice in found.advice
    assert {finding.status for finding in resource_findings.judge_limits(facts(), HERE)} == {OK}


def test_a_folder_that_is_each_hosts_own():
    seen = facts(folders={"/checkpoints": {"seen": False}})
    found = one(resource_findings.judge_folders(seen, HERE))
    assert found.status == PROBLEM
    assert "not the driver's" in found.found
    assert "shared storage" in found.advice
    assert one(resource_findings.judge_folders(seen, "driver")).status == OK


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
    found = network_findings.judge_clock(ahead, HERE)
    assert found.status == status
    assert says in found.found


def answer(place: str, host: str, **changes: Any) -> dict[str, Any]:
    return {
        "place": place,
        "host": host,
        "address": place.partition(":")[0],
        "interface": "eth0",
        "driver": {"seconds_ahead": 0.0, "to": "10.0.0.1:4711"},
        "peers": {},
        **changes,
    }


def test_a_driver_that_an_executor_cannot_reach():
    blocked = answer("10.0.0.2:1", "b", driver={"error": "no answer", "to": "10.0.0.1:4711"})
    found = one(network_findings.judge_network([blocked], single_host=False), "network.driver")
    assert found.status == PROBLEM
    assert "cannot reach the driver's log channel at 10.0.0.1:4711" in found.found
    assert "spark.driver.host" in found.advice


def test_executors_that_would_use_the_loopback():
    lost = [answer("127.0.0.1:1", "a"), answer("10.0.0.2:1", "b")]
    found = [
        finding
        for finding in network_findings.judge_network(lost, single_host=False)
        if finding.check == "network.address"
    ]
    assert [finding.status for finding in found] == [PROBLEM, OK]
    assert "SPARK_LOCAL_IP" in found[0].advice


def test_two_hosts_of_one_name_are_told_apart_by_their_addresses():
    both = [answer("10.0.0.2:1", "b"), answer("10.0.0.3:1", "b")]
    found = one(network_findings.judge_network(both, single_host=False), "network.names")
    assert found.status == WARNING
    assert "2 hosts are called b: 10.0.0.2, 10.0.0.3" in found.found


def test_two_executors_of_one_host_share_no_name_with_another():
    both = [answer("10.0.0.2:1", "b"), answer("10.0.0.2:2", "b")]
    found = network_findings.judge_network(both, single_host=False)
    assert one(found, "network.names").status == OK


@pytest.mark.parametrize(
    ("name", "single_host", "status"),
    [
        ({"name": "b", "leads_to": "127.0.1.1"}, False, WARNING),
        ({"name": "b", "leads_to": "127.0.1.1"}, True, OK),
        ({"name": "b", "error": "Name or service not known"}, False, WARNING),
        ({"name": "b", "leads_to": "10.0.0.2"}, False, OK),
    ],
)
def test_where_a_hosts_name_leads(name, single_host, status):
    assert (
        network_findings.judge_name(facts(name=name), HERE, single_host=single_host).status
        == status
    )
