"""One to three faults at once, of every kind, at a random moment of a run over two hosts.

The hosts are network namespaces, so that links can be cut; the agents and workers are the real
ones. A cause is right if it is one of the faults that were injected, with its rank or its hosts. A
disk that is slow for less than the deadline, and a process that stays after its function returned,
must not end a run. ``make mixed-faults N=200 SEED=1`` takes some seconds a fault and needs root,
and so is no test of the suites.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.host.leftovers import belongings, leftovers

from namespace_gang import NamespaceGang, Namespaces
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.call import pack
from sparkdl_runner.launch.driver.diagnosis import result_of
from sparkdl_runner.launch.wire.attempt import AttemptSpec

RANKS, HOSTS = 3, 2
HANG_SECONDS, HEARTBEAT_SECONDS, SLOW_SECONDS = 20.0, 20.0, 3.0
# Beyond its deadline, for stacks, stopping, and a busy machine.
MARGIN_SECONDS = 100.0
# A rank that is killed is told at once, however busy the machine is.
KILL_SECONDS = 20.0
LONGEST_SECONDS = 240.0
KINDS = ("kill", "stop", "cut", "vanish", "slow disk", "returned but stuck")
HARMLESS = ("slow disk", "returned but stuck")


def run(count: int, seed: int, backends: list[str]) -> list[dict[str, Any]]:
    """Injects so many faults, and says what became of each run."""
    dice = random.Random(seed)
    hosts = Namespaces(HOSTS)
    results: list[dict[str, Any]] = []
    try:
        while sum(len(one["fault"].split(" + ")) for one in results) < count:
            kinds = dice.sample(KINDS, dice.choices((1, 2, 3), (6, 3, 1))[0])
            faults = [(kind, dice.randrange(RANKS)) for kind in kinds]
            backend = backends[len(results) % len(backends)]
            result = _break(hosts, backend, faults, dice.uniform(0, 1))
            results.append(result)
            right = "right" if result["is_correct"] else f"WRONG: {result['error']}"
            told = f"after {result['seconds']:.2f} s, left: {', '.join(result['left'])}"
            where = ", ".join(f"{kind} of rank {rank}" for kind, rank in faults)
            print(f"{backend}, {where}: {right} {told}", flush=True)
    finally:
        hosts.close()
    return results


def _break(
    hosts: Namespaces, backend: str, faults: list[tuple[str, int]], delay: float
) -> dict[str, Any]:
    before = belongings()
    struck_at: list[float] = []
    error: BaseException | None = None
    told = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(Path(folder) / "fifo")
        attempt = AttemptSpec(
            backend=backend,
            function=pack(work_of_a_rank(), backend=backend, folder=folder),
            config=RunConfig(
                driver_log_verbosity="log_callback_only",
                hang_timeout_seconds=HANG_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_grace_seconds=2.0,
            ),
            run=f"mixed-{time.time_ns()}",
        )
        gang = NamespaceGang(attempt, RANKS, hosts)
        injector = threading.Thread(
            target=_inject, args=(hosts, Path(folder), faults, delay, struck_at), daemon=True
        )
        injector.start()
        try:
            with contextlib.redirect_stderr(told):
                result_of(gang.run(), gang.attempt.run)
        except RunnerError as caught:
            error = caught
        ended_at = time.time()
        (Path(folder) / "over").touch()
        injector.join()
        hosts.mend()
    seconds = ended_at - (struck_at[0] if struck_at else float("nan"))
    left = leftovers(before)
    harmful = [(kind, rank) for kind, rank in faults if kind not in HARMLESS]
    is_seen_at_once = harmful and {kind for kind, _ in harmful} == {"kill"}
    most = KILL_SECONDS if is_seen_at_once else MARGIN_SECONDS + (HANG_SECONDS if harmful else 60.0)
    in_time = seconds < most
    is_right = any(_tells(str(error), *one) for one in harmful) if harmful else error is None
    return {
        "fault": " + ".join(sorted(kind for kind, _ in faults)),
        "backend": backend,
        "is_correct": bool(struck_at) and is_right and in_time,
        "seconds": round(seconds, 3),
        "left": left,
        "error": "none" if error is None else f"{type(error).__name__}: {error}".splitlines()[0],
    }


def _tells(told: str, kind: str, rank: int) -> bool:
    """Whether an error is about this fault."""
    first = told.partition("\n")[0]
    if kind == "cut":
        return "and none is late" in first
    # Partitions are placed in turn, and ranks of one host come one after another.
    if kind == "vanish":
        ranks = _ranks_of_host(rank % HOSTS)
        return "not been heard" in first and any(f"Rank {one} of" in first for one in ranks)
    words = "SIGKILL" if kind == "kill" else "SIGSTOP"
    return first.startswith(f"Rank {rank} of ") and words in first


def _ranks_of_host(host: int) -> range:
    sizes = [len(range(one, RANKS, HOSTS)) for one in range(HOSTS)]
    return range(sum(sizes[:host]), sum(sizes[: host + 1]))


def _inject(
    hosts: Namespaces,
    folder: Path,
    faults: list[tuple[str, int]],
    delay: float,
    struck_at: list[float],
) -> None:
    began = time.monotonic()
    over = folder / "over"
    while not all((folder / f"pid-{rank}").exists() for rank in range(RANKS)):
        if over.exists() or time.monotonic() - began > LONGEST_SECONDS:
            return
        time.sleep(0.02)
    time.sleep(delay)
    struck_at.append(time.time())
    for kind, rank in faults:
        with contextlib.suppress(ProcessLookupError, ValueError):
            if kind in ("kill", "stop"):
                pid = int((folder / f"pid-{rank}").read_text())
                os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            elif kind == "cut":
                hosts.part()
            elif kind == "vanish":
                hosts.vanish(rank % HOSTS)
            else:
                (folder / f"{kind}-{rank}").touch()
    if "slow disk" in dict(faults):
        time.sleep(SLOW_SECONDS)
    if all(kind in HARMLESS for kind, _ in faults):
        (folder / "finish").touch()
    fifo = os.open(folder / "fifo", os.O_RDWR)
    os.write(fifo, b"at last\n")
    while not over.exists() and time.monotonic() - began < LONGEST_SECONDS:
        time.sleep(0.1)
    os.close(fifo)


def work_of_a_rank() -> Callable[..., int]:
    """Makes the function of the ranks. It is nested, so that pickle sends its code along."""

    def work(backend: str, folder: str) -> int:
        import threading
        import time
        from pathlib import Path

        import torch

        rank = int(os.environ["RANK"])
        if backend == "horovod":
            import horovod.torch as hvd

            hvd.init()

            def reduce(x: Any) -> Any:
                return hvd.allreduce(x, op=hvd.Sum, name="x")
        else:
            import torch.distributed as dist

            dist.init_process_group("gloo")

            def reduce(x: Any) -> Any:
                dist.all_reduce(x)
                return x

        here = Path(folder)
        reduce(torch.ones(10))
        (here / f"pid-{rank}.new").write_text(str(os.getpid()))
        (here / f"pid-{rank}.new").rename(here / f"pid-{rank}")
        was_slow = False
        while True:
            time.sleep(0.01)
            if not was_slow and (here / f"slow disk-{rank}").exists():
                was_slow = True
                with open(here / "fifo") as fifo:
                    fifo.readline()
            is_last = rank == 0 and (here / "finish").exists()
            if reduce(torch.tensor([float(is_last)])).item():
                break
        if (here / f"returned but stuck-{rank}").exists():
            threading.Thread(target=time.sleep, args=(3600,)).start()
        return rank

    return work


def main() -> None:
    """Injects all faults, and exits with 1 if one was told wrongly or left anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backends", nargs="+", default=["horovod", "torch"])
    arguments = parser.parse_args()
    # An exception, so that the processes and the network namespaces go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = run(arguments.count, arguments.seed, arguments.backends)
    wrong = sum(not one["is_correct"] or bool(one["left"]) for one in results)
    print(f"{len(results)} runs, {wrong} of them wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
