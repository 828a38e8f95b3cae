"""What an ordinary second user of the host gets from a training of the first: nothing."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkdl_runner import HorovodRunner

NOBODY = 65534
PATIENCE_SECONDS = 60

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]

ATTACK = textwrap.dedent(
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


def waits_to_be_attacked(folder: Path) -> float:
    import torch

    place, ready = folder / "place", folder / "attacked"
    if os.environ["HOROVOD_RANK"] == "0":
        port, address = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{one}"] for one in ("PORT", "ADDR"))
        (folder / "new").write_text(f"{port} {address.partition('/')[2]}")
        (folder / "new").rename(place)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)

    import horovod.torch as hvd

    hvd.init()
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum))


def test_horovods_rendezvous_takes_nothing_from_another_user(tmp_path: Path) -> None:
    """Not even from one who has found out the secret."""
    attacker = subprocess.Popen(
        ["/usr/bin/python3", "-c", ATTACK],
        user=NOBODY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def attack() -> str:
        while not (tmp_path / "place").exists():
            time.sleep(0.05)
        said, _ = attacker.communicate((tmp_path / "place").read_text())
        (tmp_path / "attacked").touch()
        return said

    with attacker, ThreadPoolExecutor(1) as threads:
        said = threads.submit(attack)
        assert HorovodRunner(np=-2).run(waits_to_be_attacked, folder=tmp_path) == 2.0
    assert said.result().split() == ["refused"] * 48
