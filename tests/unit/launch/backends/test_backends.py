from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.backends import (
    BACKENDS,
    Backend,
    Rendezvous,
    get_backend,
    torch_store,
)
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.rank.world import Peer, assign_ranks

PEERS = [
    Peer(partition=i, host=host, host_key=host, address="10.0.0.1", interface="eth1")
    for i, host in enumerate("aab")
]
WORLDS = assign_ranks(PEERS, backend="any", attempt=1)
FOUR_ON_A_HOST = assign_ranks(
    [replace(PEERS[0], partition=place) for place in range(4)], backend="any"
)


def environment_of(backend, partition, *, worlds=WORLDS, ranks_per_task=1, **config):
    attempt = AttemptSpec(backend=backend, function=b"", config=RunConfig(**config), run="a run")
    rendezvous = Rendezvous(
        address="10.0.0.9",
        port=4711,
        secret="s3",
        peers=frozenset(),
        num_proc=3,
        attempt=attempt,
        servers=("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"),
    )
    return get_backend(backend).environment(
        attempt.node_view(worlds[partition], ranks_per_task), rendezvous
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_each_says_all_that_is_asked_of_it(name):
    backend = get_backend(name)
    assert backend.name == name
    assert [one for one in Backend.__annotations__ if not hasattr(backend, one)] == []


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


def test_tensorflow_learns_its_place():
    environment = environment_of("tensorflow", 2)
    assert json.loads(environment["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"]},
        "task": {"type": "worker", "index": 2},
    }


def test_the_port_that_is_held_is_for_a_server_of_our_own_that_asks_for_it():
    with get_backend("tensorflow").hold_port() as held, socket.socket() as other:
        place = ("", held.getsockname()[1])
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(place)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(place)
        other.listen()
        for _ in range(10):  # The one that holds it takes no connection away.
            socket.create_connection(("127.0.0.1", place[1]), 120).close()
            other.accept()[0].close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_port_that_is_held_is_not_for_another_user():
    with get_backend("tensorflow").hold_port() as held:
        code = (
            "import os, socket, sys; os.setuid(65534); other = socket.socket()\n"
            "other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
            f"other.bind((sys.argv[1], {held.getsockname()[1]}))"
        )
        for address in ("", "127.0.0.1"):
            done = subprocess.run([sys.executable, "-c", code, address], capture_output=True)
            assert b"Address already in use" in done.stderr


@pytest.mark.parametrize("name", BACKENDS)
def test_all_set_what_other_libraries_read(name):
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


@pytest.mark.parametrize("name", BACKENDS)
def test_all_ranks_of_a_host_have_its_number(name):
    # The second rank of the first host has no other of its local rank, so its cross rank is 0.
    for variable in ("GROUP_RANK", "NODE_RANK"):
        assert [environment_of(name, i)[variable] for i in range(3)] == ["0", "0", "1"]


@pytest.mark.parametrize("name", BACKENDS)
def test_each_task_is_a_node_of_one_device_where_that_is_asked_for(name):
    for rank in range(3):
        expected = {
            "NODE_RANK": str(rank),
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": "3",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
        assert expected.items() <= environment_of(name, rank, node_view="task").items()


@pytest.mark.parametrize("name", BACKENDS)
def test_the_ranks_of_a_task_are_a_node_of_several_devices(name):
    for rank, (task, turn) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        expected = {
            "GROUP_RANK": str(task),
            "GROUP_WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(turn),
            "LOCAL_WORLD_SIZE": "2",
        }
        found = environment_of(
            name, rank, worlds=FOUR_ON_A_HOST, ranks_per_task=2, node_view="task"
        )
        assert expected.items() <= found.items()


def test_horovods_local_scope_is_a_task_where_that_is_the_node():
    told = [environment_of("horovod", rank, node_view="task") for rank in range(3)]
    assert [one["HOROVOD_LOCAL_SIZE"] for one in told] == ["1", "1", "1"]
    assert [one["HOROVOD_CROSS_RANK"] for one in told] == ["0", "1", "2"]
    assert len({one["HOROVOD_HOSTNAME"] for one in told}) == 3


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
    with pytest.raises(LaunchError, match="pip install tensorflow"):
        get_backend("tensorflow").check_installed()


class HorovodInternalError(RuntimeError):
    pass


class DistBackendError(RuntimeError):
    pass


def lost(text):
    return HorovodInternalError(RuntimeError(text))


def of_tensorflow(name, text):
    return type(name, (Exception,), {"__module__": "tensorflow.python.framework"})(text)


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
        ("tensorflow", of_tensorflow("UnavailableError", "x"), True),
        ("tensorflow", of_tensorflow("InternalError", "Collective ops is aborted by: x"), True),
        ("tensorflow", of_tensorflow("InternalError", "x"), False),
        (
            "tensorflow",
            of_tensorflow("InvalidArgumentError", "Collective ops is aborted by"),
            False,
        ),
        ("tensorflow", type("UnavailableError", (Exception,), {})("x"), False),
    ],
)
def test_a_lost_peer_is_told_from_a_cause(backend, error, expected):
    assert get_backend(backend).is_communication_error(error) is expected


def test_adasum_which_is_not_there_is_answered_with_what_is():
    backend = get_backend("horovod")
    assert "Take op=hvd.Average" in backend.advice(lost("No Adasum operation enabled"))
    assert backend.advice(lost("Mismatched data types: One rank had type")) == ""


def test_lightnings_devices_are_answered_with_those_that_fit(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    told = get_backend("torch").advice(
        ValueError(
            "You set `devices=4` and `num_nodes=1` in Lightning, but the product (4 * 1) does not "
            "match the world size (6)."
        )
    )
    assert "devices=int(os.environ['LOCAL_WORLD_SIZE']) (ranks of a host, here 2)" in told
    assert "num_nodes=int(os.environ['GROUP_WORLD_SIZE']) (hosts, here 3)" in told


def test_one_device_for_several_ranks_of_a_host_gets_advice():
    lightning = {"__name__": "lightning.pytorch.strategies.ddp"}
    exec("def root_device(): return [0][1]", lightning)
    exec("def index(): return [0][1]", other := {"__name__": "lightning.pytorch.data"})
    with pytest.raises(IndexError) as caught:
        lightning["root_device"]()
    assert "RunConfig(node_view='task')" in get_backend("torch").advice(caught.value)
    with pytest.raises(IndexError) as caught:
        other["index"]()
    assert get_backend("torch").advice(caught.value) == ""
    assert get_backend("torch").advice(IndexError()) == ""


def test_other_errors_of_torch_get_no_advice():
    backend = get_backend("torch")
    refused, value = NotImplementedError, ValueError("does not match the world size")
    mesh = RuntimeError("Mesh")
    for error in (refused("later"), refused(3), refused(), RuntimeError(), mesh, value):
        assert backend.advice(error) == ""
