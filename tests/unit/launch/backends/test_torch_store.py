from __future__ import annotations

import importlib
import os
import socket
from datetime import timedelta

import pytest

from sparkdl_runner.launch.backends import get_backend, torch_store

torch = pytest.importorskip("torch")
distributed_c10d = pytest.importorskip("torch.distributed.distributed_c10d")


def test_each_group_meets_under_keys_of_its_own(monkeypatch):
    from torch.distributed import HashStore

    store = HashStore()
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    monkeypatch.setitem(handlers, "env", lambda url, **arguments: iter([(store, 1, 2)]))
    torch_store.give_each_group_its_own_keys()
    (first, rank, size) = next(handlers["env"]("env://", timeout=None))
    assert (rank, size) == (1, 2)
    first.set("address", "of a socket that will be closed")
    (second, _, _) = next(handlers["env"]("env://", timeout=None))
    assert first.check(["address"])
    assert not second.check(["address"])


@pytest.mark.parametrize(
    ("promised", "expected"), [("60", [30, 10]), ("1200", [30, 20]), ("7200", [120, 120])]
)
def test_torch_gives_up_no_sooner_than_the_run(monkeypatch, promised, expected):
    names = ("default_pg_timeout", "default_pg_nccl_timeout")
    for name, minutes in zip(names, (30, 10), strict=True):
        monkeypatch.setattr(distributed_c10d, name, timedelta(minutes=minutes))
    monkeypatch.setenv(torch_store.JOIN_SECONDS, promised)
    torch_store.wait_as_long_as_promised()
    limits = [getattr(distributed_c10d, name) for name in names]
    assert limits == [timedelta(minutes=minutes) for minutes in expected]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("basic_string::_M_create"), True),
        (MemoryError("std::bad_alloc"), True),
        (MemoryError(), False),
        (ValueError("Invalid backend"), False),
    ],
)
def test_keys_that_were_changed_are_told_as_such(monkeypatch, error, expected):
    def make_gloo(*_, **__):
        raise error

    # That is how torch's native code raises it.
    monkeypatch.setattr(distributed_c10d, "ProcessGroupGloo", make_gloo)
    with pytest.raises(type(error)) as told:
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    assert ("tampered with" in get_backend("torch").advice(told.value)) is expected


def test_a_collective_that_is_out_of_memory_is_no_tampering():
    with pytest.raises(MemoryError) as told:
        raise MemoryError("std::bad_alloc")
    assert get_backend("torch").advice(told.value) == ""


@pytest.mark.parametrize(
    ("version", "by_libuv"), [("2.3.1", False), ("2.7.0+cu126", False), ("2.8.0", True)]
)
def test_the_store_is_one_that_takes_over_a_listening_socket(monkeypatch, version, by_libuv):
    given = {}
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(version))
    monkeypatch.setattr(
        torch.distributed, "TCPStore", lambda *address, **arguments: given.update(arguments)
    )
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(torch_store, "_store", None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        torch_store.serve(listener.dup())
    os.close(given["master_listen_fd"])  # It was left to the store.
    assert given["use_libuv"] == by_libuv


def test_who_reaches_its_port_may_read_and_write():
    """A limit of torch's, which SECURITY.md tells: its store asks nobody who they are."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stranger = torch.distributed.TCPStore("127.0.0.1", store.port)
    store.set("address", "of rank 0")
    assert stranger.get("address") == b"of rank 0"
    stranger.set("address", "of somebody else")
    assert store.get("address") == b"of somebody else"
