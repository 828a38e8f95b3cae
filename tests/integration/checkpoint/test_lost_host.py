"""Ranks of two hosts, one of which is lost with all its memory: what the restart reads.

A host is a network namespace with processes of its own. Its first process is a shell, which starts
the ranks as Spark's executor would.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from held_copies import held, until
from namespace_gang import Namespaces
from namespaces import why_not
from sparkdl_runner.rank import restart_memory, world
from sparkdl_runner.rank.world import Peer, assign_ranks

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
ROOT = Path(__file__).resolve().parents[3]
RUN = f"lost-host-{os.getpid()}"
ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def train(folder: Path, rank: int, hosts: list[str], attempt: int) -> None:
    """A rank: restores, saves two steps in the first attempt, and waits for others in vain."""
    import torch
    import torch.distributed as dist

    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage

    read: set[str] = set()
    from_storage = LocalStorage.open

    def noted(self: LocalStorage, name: str) -> Any:
        read.add(name.rpartition("/")[2])
        return from_storage(self, name)

    LocalStorage.open = noted  # type: ignore[method-assign]
    peers = [
        Peer(partition=one, host=host, host_key=host, address=host, interface="eth0")
        for one, host in enumerate(hosts)
    ]
    world._current = assign_ranks(peers, backend="torch", attempt=attempt)[rank]
    store = f"tcp://{hosts[0]}:29{attempt}00"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=len(hosts))
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    with CheckpointManager(folder / "checkpoints", memory_copies=1) as checkpoints:
        restored = checkpoints.restore(model, optimizer, scheduler=Epochs())
        step = restored.step if restored else 0
        say(
            folder / f"restored-{attempt}-{rank}",
            {"step": step, "read": sorted(read), "weights": model.weight.tolist()},
        )
        if attempt:
            return
        for step in (1, 2):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            checkpoints.save(step, model, optimizer, extra="plain", scheduler=Epochs())
        checkpoints.wait()
        say(folder / f"saved-{rank}", model.weight.tolist())
        while True:
            dist.all_reduce(torch.ones(1))


class Epochs:
    """Anything with a state."""

    def state_dict(self) -> dict[str, int]:
        return {"epoch": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {"epoch": 1}


def say(path: Path, value: Any) -> None:
    """Tells the test something."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.rename(path)


def said(folder: Path, name: str) -> Any:
    """Reads the answer of a rank; None if there is none yet."""
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else None


class Host:
    """A host, and the shell that is its first process."""

    def __init__(self, name: str) -> None:
        command = ["ip", "netns", "exec", name, *ALONE, "sh"]
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def start(self, folder: Path, rank: int, hosts: list[str], attempt: int) -> None:
        """Starts a rank."""
        words = [str(folder), str(rank), json.dumps(hosts), str(attempt)]
        command = shlex.join([sys.executable, __file__, *words])
        errors = folder / f"errors-{attempt}-{rank}"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{command} 2> {errors} &\n")
        self._shell.stdin.flush()

    def close(self) -> None:
        """Ends everything on it, as a lost host's power would."""
        self._shell.kill()
        self._shell.communicate()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Host], list[str]]]:
    if problem := why_not():
        pytest.skip(problem)
    monkeypatch.setenv(restart_memory.VARIABLE, f"{RUN} 1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests"))))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    with ExitStack() as stack:
        made = stack.enter_context(closing(Namespaces(2)))
        yield [stack.enter_context(closing(Host(name))) for name in made.names], made.addresses


def test_the_host_that_stays_restores_from_its_memory(hosts, tmp_path):
    (lost, stays), addresses = hosts
    lost.start(tmp_path, 0, addresses, 0)
    stays.start(tmp_path, 1, addresses, 0)
    until(lambda: said(tmp_path, "saved-0") and said(tmp_path, "saved-1"))
    (manifest,) = tmp_path.glob("checkpoints/step-2/*/manifest.json")
    files = [entry["sha256"] for entry in json.loads(manifest.read_text())["files"]]
    until(lambda: held(RUN) == sorted(files * 2))
    lost.close()
    until(lambda: "RuntimeError: " in (tmp_path / "errors-0-1").read_text())
    until(lambda: held(RUN) == sorted(files))
    stays.start(tmp_path, 0, addresses[1:], 1)
    until(lambda: said(tmp_path, "restored-1-0"))
    restored = said(tmp_path, "restored-1-0")
    assert (restored["step"], restored["read"]) == (2, ["manifest.json"])
    assert restored["weights"] == said(tmp_path, "saved-0")
    until(lambda: not held(RUN))


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
