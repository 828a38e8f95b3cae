"""A standalone cluster of two hosts on which much is wrong, and what the command says of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_python import Doctor, run_doctor
from hosts import Cluster, Hosts

from namespaces import ip, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(REASON is not None, reason=f"needs several hosts: {REASON}"),
]

# What NVIDIA's own tool says on a host with a GPU, and on one without.
NVIDIA_SMI = """#!/bin/sh
if ip link show {interface} >/dev/null 2>&1; then
    echo "0, GPU-5ca1ab1e, NVIDIA A10G, 550.54.15"
else
    echo "No devices were found"
    exit 6
fi
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    names = []
    try:
        for name in hosts.names:
            # Bound over /etc/hosts by "ip netns exec": a host whose own name is the loopback's.
            names.append(Path("/etc/netns", name))
            names[-1].mkdir(parents=True)
            (names[-1] / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {os.uname()[1]}\n")
        yield hosts
    finally:
        for folder in names:
            (folder / "hosts").unlink(missing_ok=True)
            folder.rmdir()
        hosts.close()


def drop_what_comes(hosts: Hosts, *, to: int, source: int) -> None:
    """A firewall on one host that drops all that another sends, and says nothing."""
    name = hosts.names[to]
    ip("-n", name, "rule", "add", "pref", "100", "lookup", "local")
    ip("-n", name, "rule", "delete", "pref", "0")
    ip("-n", name, "rule", "add", "pref", "50", "from", hosts.addresses[source], "blackhole")
    # A firewall answers ARP; this rule does not, so the sender is told the receiver's address.
    link = ip("-n", name, "-json", "link", "show", "dev", hosts.interfaces[to])
    neighbour = (hosts.addresses[to], "lladdr", json.loads(link)[0]["address"])
    way = ("dev", hosts.interfaces[source])
    ip("-n", hosts.names[source], "neighbour", "replace", *neighbour, *way)


@pytest.fixture(scope="module")
def ill(hosts, tmp_path_factory) -> Iterator[Doctor]:
    """What doctor says of a cluster in which one host has no GPU and a deaf firewall."""
    folder = tmp_path_factory.mktemp("hosts")
    tool = folder / "nvidia-smi"
    tool.write_text(NVIDIA_SMI.format(interface=hosts.interfaces[0]))
    tool.chmod(0o755)
    patch = pytest.MonkeyPatch()
    with patch.context():
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        cluster = Cluster(hosts, folder, gpus=("0", "0"))
    patch.undo()
    try:
        drop_what_comes(hosts, to=1, source=0)
        yield run_doctor(
            *("--np", "4", "--master", cluster.url, "--backend", "torch"),
            *("--conf", f"spark.driver.host={hosts.driver}"),
            *("--conf", "spark.executor.memory=600m", "--conf", "spark.executor.cores=2"),
            *("--conf", "spark.ssl.enabled=true"),
            # The code of a task in so many parts that some are fetched from the other host.
            *("--conf", "spark.broadcast.blockSize=4k"),
            SPARK_LOCAL_IP=hosts.driver,
        )
    finally:
        cluster.close()


def test_one_host_without_a_gpu(ill, hosts):
    without = ill.problem("gpu", where=hosts.addresses[1])
    assert "This host has no GPU: No devices were found" in without
    assert "nvidia-smi" in without
    assert "container toolkit" in without
    have = ill.finding("gpu", where=hosts.addresses[0])
    assert have["status"] == "ok"
    assert "NVIDIA A10G, driver 550.54.15" in have["found"]


def test_gpus_that_torch_cannot_use(ill, hosts):
    said = ill.warning("gpu.torch", where=hosts.addresses[0])
    assert "built without CUDA" in said
    assert "Install a CUDA build" in said


def test_a_blocked_way_between_two_hosts(ill, hosts):
    said = ill.problem("network.executors", where=hosts.addresses[0])
    assert f"cannot reach {hosts.addresses[1]}" in said
    assert "as where a firewall drops packets" in said
    assert "Open TCP between the executors" in said
    assert ill.finding("network.driver", where=hosts.addresses[0])["status"] == "ok"


def test_encryption_that_no_backend_has(ill):
    said = ill.problem("spark.encryption")
    assert "spark.ssl.enabled is true" in said
    assert "allow_unencrypted" in said


def test_a_host_whose_name_leads_to_the_loopback(ill, hosts):
    said = ill.warning("network.name", where=hosts.addresses[0])
    assert f"{os.uname()[1]} leads to 127.0.1.1, the loopback interface" in said
    assert "/etc/hosts" in said


def test_two_hosts_of_one_name(ill, hosts):
    said = ill.warning("network.names")
    assert f"2 hosts are called {os.uname()[1]}: {', '.join(hosts.addresses)}" in said
    assert "hostnamectl" in said


def test_each_host_is_named_with_its_interface_and_its_clock(ill, hosts):
    for address, interface in zip(hosts.addresses, hosts.interfaces, strict=True):
        found = ill.finding("network.address", where=address)
        assert found["found"] == f"ranks use {address} on {interface}"
        assert ill.finding("clock", where=address)["status"] == "ok"
    assert ill.finding("spark.slots")["found"].startswith("4 task slots")
