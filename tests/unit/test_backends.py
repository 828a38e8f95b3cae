from __future__ import annotations

import importlib.util

import pytest

from sparkdl_runner.backends import get_backend
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.world import Peer, assign_ranks

PEERS = [
    Peer(partition=i, host=host, host_key=host, address="10.0.0.1", interface="eth1")
    for i, host in enumerate("aab")
]
WORLDS = assign_ranks(PEERS, backend="any")


def test_horovod_learns_its_place():
    environment = get_backend("horovod").environment(WORLDS[2], "10.0.0.9", 4711)
    assert environment["HOROVOD_RANK"] == "2"
    assert environment["HOROVOD_SIZE"] == "3"
    assert environment["HOROVOD_LOCAL_RANK"] == "0"
    assert environment["HOROVOD_LOCAL_SIZE"] == "1"
    assert environment["HOROVOD_CROSS_RANK"] == "1"
    assert environment["HOROVOD_CROSS_SIZE"] == "2"
    assert environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.9"
    assert environment["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "4711"
    assert environment["HOROVOD_GLOO_IFACE"] == "eth1"


def test_ranks_of_different_hosts_never_share_horovods_local_scope():
    names = [
        get_backend("horovod").environment(WORLDS[i], "x", 1)["HOROVOD_HOSTNAME"] for i in range(3)
    ]
    assert names[0] == names[1] != names[2]


def test_torch_learns_its_place():
    environment = get_backend("torch").environment(WORLDS[1], "10.0.0.9", 4711)
    assert environment["MASTER_ADDR"] == "10.0.0.9"
    assert environment["MASTER_PORT"] == "4711"
    assert environment["GLOO_SOCKET_IFNAME"] == "eth1"


@pytest.mark.parametrize("name", ["horovod", "torch"])
def test_both_set_what_other_libraries_read(name):
    environment = get_backend(name).environment(WORLDS[1], "10.0.0.9", 4711)
    expected = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert expected.items() <= environment.items()
    assert environment["NCCL_SOCKET_IFNAME"] == "=eth1"


def test_a_missing_backend_says_which_command_provides_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"conf/horovod/build\.sh"):
        get_backend("horovod").check_installed()
    with pytest.raises(LaunchError, match=r"pip install 'sparkdl-runner\[torch\]'"):
        get_backend("torch").check_installed()


class HorovodInternalError(RuntimeError):
    pass


class DistBackendError(RuntimeError):
    pass


GLOO = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1] Connection closed")


@pytest.mark.parametrize(
    ("backend", "error", "expected"),
    [
        ("horovod", HorovodInternalError("x"), True),
        ("horovod", ValueError("x"), False),
        ("torch", DistBackendError("x"), True),
        ("torch", GLOO, True),
        ("torch", RuntimeError("shape mismatch"), False),
        ("torch", ValueError("/gloo/"), False),
    ],
)
def test_a_lost_peer_is_told_from_a_cause(backend, error, expected):
    assert get_backend(backend).is_communication_error(error) is expected
