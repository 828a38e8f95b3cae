"""What an ordinary second user of the host gets from a training of the first: nothing."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkdl_runner import DistributedRunner, HorovodRunner

NOBODY = 65534
PATIENCE_SECONDS = 60

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]

ATTACK_ON_HOROVOD = textwrap.dedent(
    """
    import http.client, sys

    port, secret = sys.stdin.read().split()
    port = int(port)
    for prefix in ("", f"/{secret}:{port}"):
        for scope in ("global", "cross_0"):
            for key in ("rank_0", "rank_1", "0", "1"):
                for method in ("PUT", "GET", "DELETE"):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                    try:
                        connection.request(method, f"{prefix}/{scope}/{key}", body=b"garbage")
                        print(method, connection.getresponse().status)
                    except (ConnectionError, http.client.HTTPException):
                        print("refused")
                    connection.close()
    """
)


# The second address is that of the store itself, behind what admits connections to it.
ATTACK_ON_TORCH = textwrap.dedent(
    """
    import socket, sys

    port = int(sys.stdin.read())
    for address in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as connection:
            connection.settimeout(1)
            try:
                connection.connect((address, port))
                print("refused" if connection.recv(1) == b"" else "answered")
            except ConnectionResetError:
                print("refused")
            except TimeoutError:
                try:
                    connection.getpeername()
                    print("admitted")
                except OSError:
                    print("unreachable")
    """
)


def tell_and_wait(folder: Path, place: str) -> None:
    if os.environ["RANK"] == "0":
        (folder / "new").write_text(place)
        (folder / "new").rename(folder / "place")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (folder / "attacked").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def waits_to_be_attacked(folder: Path) -> float:
    import torch

    port, address = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{one}"] for one in ("PORT", "ADDR"))
    tell_and_wait(folder, f"{port} {address.partition('/')[2]}")

    import horovod.torch as hvd

    hvd.init()
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum))


def waits_to_be_attacked_with_torch(folder: Path) -> float:
    import torch
    from torch import distributed

    tell_and_wait(folder, os.environ["MASTER_PORT"])
    total = torch.ones(1)
    for _ in range(2):
        distributed.init_process_group("gloo")
        distributed.all_reduce(total)
        distributed.destroy_process_group()
    return float(total)


def attack(folder: Path, how: str, run: Callable[[], object]) -> tuple[object, list[str]]:
    """Attacks a run, once it says where. Returns its result, and what the attacker saw."""
    attacker = subprocess.Popen(
        ["/usr/bin/python3", "-c", how],
        user=NOBODY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def wait_and_attack() -> str:
        while not (folder / "place").exists():
            time.sleep(0.05)
        said, _ = attacker.communicate((folder / "place").read_text())
        (folder / "attacked").touch()
        return said

    with attacker, ThreadPoolExecutor(1) as threads:
        said = threads.submit(wait_and_attack)
        return run(), said.result().split()


def test_horovods_rendezvous_takes_nothing_from_another_user(tmp_path: Path) -> None:
    """Not even from one who has found out the secret."""
    runner = HorovodRunner(np=-2)
    result, seen = attack(
        tmp_path, ATTACK_ON_HOROVOD, lambda: runner.run(waits_to_be_attacked, folder=tmp_path)
    )
    assert result == 2.0
    assert seen == ["refused"] * 48


def test_torchs_store_is_out_of_reach_for_another_user(tmp_path: Path) -> None:
    runner = DistributedRunner(num_proc=-2, backend="torch")
    result, seen = attack(
        tmp_path,
        ATTACK_ON_TORCH,
        lambda: runner.run(waits_to_be_attacked_with_torch, folder=tmp_path),
    )
    assert result == 4.0
    assert seen == ["refused", "unreachable"]
