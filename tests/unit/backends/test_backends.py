from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from sparkdl_runner.backends import Rendezvous, get_backend, torch_store
from sparkdl_runner.config import RunConfig
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.wire.attempt import Attempt
from sparkdl_runner.world import Peer, assign_ranks

PEERS = [
    Peer(partition=i, host=host, host_key=host, address="10.0.0.1", interface="eth1")
    for i, host in enumerate("aab")
]
WORLDS = assign_ranks(PEERS, backend="any", attempt=1)


def environment_of(backend, partition, **config):
    rendezvous = Rendezvous(
        address="10.0.0.9",
        port=4711,
        secret="s3",
        peers=frozenset(),
        num_proc=3,
        attempt=Attempt(backend=backend, function=b"", config=RunConfig(**config), run="a run"),
    )
    return get_backend(backend).environment(WORLDS[partition], rendezvous)


def test_horovod_learns_its_place():
    environment = environment_of("horovod", 2)
    assert environment["HOROVOD_RANK"] == "2"
    assert environment["HOROVOD_SIZE"] == "3"
    assert environment["HOROVOD_LOCAL_RANK"] == "0"
    assert environment["HOROVOD_LOCAL_SIZE"] == "1"
    assert environment["HOROVOD_CROSS_RANK"] == "1"
    assert environment["HOROVOD_CROSS_SIZE"] == "2"
    assert environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.9:4711/s3"
    assert environment["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "4711"
    assert environment["HOROVOD_GLOO_IFACE"] == "eth1"


def test_ranks_of_different_hosts_never_share_horovods_local_scope():
    names = [environment_of("horovod", i)["HOROVOD_HOSTNAME"] for i in range(3)]
    assert names[0] == names[1] != names[2]


def test_torch_learns_its_place():
    environment = environment_of("torch", 1)
    assert environment["MASTER_ADDR"] == "10.0.0.9"
    assert environment["MASTER_PORT"] == "4711"
    assert environment["GLOO_SOCKET_IFNAME"] == "eth1"


@pytest.mark.parametrize("name", ["horovod", "torch"])
def test_both_set_what_other_libraries_read(name):
    environment = environment_of(name, 1, max_restarts=2)
    expected = {
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "3",
        "TORCHELASTIC_RUN_ID": "a run",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "2",
    }
    assert expected.items() <= environment.items()
    assert environment["NCCL_SOCKET_IFNAME"] == "=eth1"


@pytest.mark.parametrize("name", ["horovod", "torch"])
def test_all_ranks_of_a_host_have_its_number(name):
    # The second rank of the first host has no other of its local rank, so its cross rank is 0.
    groups = [environment_of(name, i)["GROUP_RANK"] for i in range(3)]
    assert groups == ["0", "0", "1"]


def test_nothing_of_what_torchrun_sets_is_missing():
    torch = Path(importlib.util.find_spec("torch").origin).parent
    agent = torch / "distributed/elastic/agent/server/local_elastic_agent.py"
    function = agent.read_text().partition("def _start_workers")[2].partition("    def ")[0]
    set_by_torchrun = {*re.findall(r'"([A-Z_]+)": ', function), "LOCAL_RANK"}
    assert len(set_by_torchrun) > 12
    assert set_by_torchrun <= set(environment_of("torch", 1))


@pytest.mark.parametrize(
    ("backend", "variable"),
    [("horovod", "HOROVOD_GLOO_TIMEOUT_SECONDS"), ("torch", torch_store.JOIN_SECONDS)],
)
def test_a_library_waits_longer_than_the_driver_who_names_the_late_rank(backend, variable):
    def seconds(limit):
        return environment_of(backend, 0, rendezvous_timeout_seconds=limit)[variable]

    assert seconds(45.5) == "106"
    assert 2**31 > 1000 * int(seconds(1e300)) > 1000 * 1_000_000


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


def lost(text):
    return HorovodInternalError(RuntimeError(text))


GLOO = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1] Connection closed")


@pytest.mark.parametrize(
    ("backend", "error", "expected"),
    [
        ("horovod", HorovodInternalError("x"), True),
        ("horovod", lost("Horovod has been shut down. This was caused by an exception"), True),
        ("horovod", lost("Mismatched ALLREDUCE tensor shapes: One rank sent"), False),
        ("horovod", lost("No Adasum operation enabled"), False),
        ("horovod", lost("Allgather is not supported with Join at this time. "), False),
        ("horovod", ValueError("x"), False),
        ("torch", DistBackendError("x"), True),
        ("torch", GLOO, True),
        ("torch", RuntimeError("shape mismatch"), False),
        ("torch", ValueError("/gloo/"), False),
    ],
)
def test_a_lost_peer_is_told_from_a_cause(backend, error, expected):
    assert get_backend(backend).is_communication_error(error) is expected


def test_adasum_which_is_not_there_is_answered_with_what_is():
    backend = get_backend("horovod")
    assert "Take op=hvd.Average" in backend.advice(lost("No Adasum operation enabled"))
    assert backend.advice(lost("Mismatched data types: One rank had type")) == ""


def test_other_errors_of_torch_get_no_advice():
    backend = get_backend("torch")
    for error in (NotImplementedError("later"), NotImplementedError(3), NotImplementedError()):
        assert backend.advice(error) == ""
