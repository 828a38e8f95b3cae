"""Checkpoints on a local folder and on S3: read by others while a training saves, and written to a
storage that fails.

``load``: processes load the newest checkpoint while a training of two ranks saves one each second
and keeps two. None may be torn, and the training must not notice.

``faults``: one write in three fails at random: of the S3 server's front, which answers 503; of the
local folder, in the rank. Trainings with and without failures run in turns. The time lost is what
their loops spent in ``save`` and ``close``.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from benchmarks.servers.object_store import ObjectStore, object_store
from benchmarks.ranks.storage_training import Options, load, train

HELP = "read a training's checkpoints, and let their storage fail"
_SLOW_DOWN = (503, "SlowDown", "Please reduce your request rate.")
_MOST_STEPS = 1_000_000
_STEP_SECONDS = 0.02
_AT_ONCE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--storage", choices=("local", "s3"), nargs="+", default=["local", "s3"])
    parser.add_argument("--loads", type=int, default=50, help="each by a process of its own")
    parser.add_argument(
        "--pairs", type=int, default=3, help="of trainings with failures and without"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="what such a training takes")
    parser.add_argument("--failing-share", type=float, default=1 / 3, help="of writes")
    parser.add_argument("--numbers", type=int, default=1_000_000, help="in the model")
    parser.add_argument("--seed", type=int, default=0)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs both on each storage.

    Returns:
        By storage: the loads, and the trainings with and without faults.
    """
    results = {}
    for kind in arguments.storage:
        results[kind] = {
            "load": _loads(kind, arguments) if arguments.loads else None,
            "faults": [_pair(kind, arguments) for _ in range(arguments.pairs)],
        }
        print(results[kind], flush=True)
    return {"results": results}


def table(report: dict[str, Any]) -> str:
    """The report for a person."""
    return "\n".join(_lines(report))


def is_good(report: dict[str, Any]) -> bool:
    """Whether nothing was torn, harmed or lost."""
    for one in report["results"].values():
        if (load := one["load"]) and (load["torn"] or load["errors"] or load["problems"]):
            return False
        if any(pair["problems"] for pair in one["faults"]):
            return False
    return True


def _lines(report: dict[str, Any]) -> Iterator[str]:
    for kind, one in report["results"].items():
        if load := one["load"]:
            yield (
                f"{kind}: {load['loads']} loads by other processes, of {load['different']} "
                f"checkpoints: {load['torn']} torn, {len(load['errors'])} failed. The training "
                f"saved {load['saves']} checkpoints in {load['seconds']:.0f} s, and "
                f"{'; '.join(load['problems']) or 'ended rightly'}."
            )
        if one["faults"]:
            lost = statistics.median(pair["lost"] for pair in one["faults"])
            problems = [problem for pair in one["faults"] for problem in pair["problems"]]
            yield (
                f"{kind}: {sum(pair['failed_writes'] for pair in one['faults'])} failed writes, "
                f"{lost:+.1%} time (median of {len(one['faults'])} pairs: "
                f"{_shares(one, 'lost')}; by the clock {_shares(one, 'lost_by_clock')}), "
                f"{_processor(one, 1):.2f} s of rank 0's processor in place of "
                f"{_processor(one, 0):.2f}; "
                f"{'; '.join(problems) or 'each training ended rightly'}."
            )


def _processor(one: dict[str, Any], which: int) -> float:
    seconds: list[float] = [pair["processor_s"][which] for pair in one["faults"]]
    return statistics.median(seconds)


def _shares(one: dict[str, Any], name: str) -> str:
    return ", ".join(format(pair[name], "+.1%") for pair in one["faults"])


@contextlib.contextmanager
def _place(kind: str) -> Iterator[tuple[str, Options, ObjectStore | None]]:
    """A new place for checkpoints, with the server behind it if there is one."""
    if kind == "local":
        with tempfile.TemporaryDirectory(prefix="storage-") as folder:
            yield folder, None, None
        return
    from pyarrow import fs

    with object_store(remembers=False) as store:
        fs.S3FileSystem(**store.options(), scheme="http", allow_bucket_creation=True).create_dir(
            "checkpoints"
        )
        # A server of this process has what was put into the one before.
        options = {**store.options(), "request_timeout": 30}
        yield f"s3://checkpoints/{uuid.uuid4().hex}", options, store


def _loads(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from sparkdl_runner import DistributedRunner

    runner = DistributedRunner(num_proc=-2, backend="torch")
    draw = random.Random(arguments.seed)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["torch", "sparkdl_runner.checkpoint"])
    with (
        _place(kind) as (url, options, _),
        ThreadPoolExecutor(1) as thread,
        # Each process makes one load.
        ProcessPoolExecutor(_AT_ONCE, mp_context=processes, max_tasks_per_child=1) as readers,
    ):
        training = thread.submit(
            runner.run,
            train,
            url,
            options,
            steps=_MOST_STEPS,
            step_seconds=_STEP_SECONDS,
            every_seconds=1.0,
            numbers=arguments.numbers,
        )
        _wait_for_checkpoint(url, options, training)
        loads = []
        for _ in range(arguments.loads):
            time.sleep(draw.uniform(0, 1))
            loads.append(readers.submit(load, url, options))
        found = [one.result() for one in loads]
        runner.request_stop("all have loaded")
        ended = training.result()
        problems = _problems(url, options, ended)
    return {
        **ended,
        "loads": len(found),
        "different": len({one.get("step") for one in found}),
        "torn": sum(one["is_torn"] for one in found),
        "errors": [one["error"] for one in found if "error" in one],
        "load_s": statistics.median(one.get("seconds", 0) for one in found),
        "problems": problems,
    }


def _pair(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    calm, failing = (_training(kind, share, arguments) for share in (0, arguments.failing_share))
    return {
        # Without the delay by other programs of a busy machine.
        "lost": (failing["waited"] - calm["waited"]) / calm["seconds"],
        "lost_by_clock": failing["seconds"] / calm["seconds"] - 1,
        "processor_s": [calm["processor_s"], failing["processor_s"]],
        "failed_writes": failing["failed_writes"],
        "seconds": [calm["seconds"], failing["seconds"]],
        "saves": [calm["saves"], failing["saves"]],
        "problems": calm["problems"] + failing["problems"],
    }


def _training(kind: str, share: float, arguments: argparse.Namespace) -> dict[str, Any]:
    from sparkdl_runner import DistributedRunner

    with _place(kind) as (url, options, store):
        draw, lock = random.Random(), threading.Lock()

        def refuses(_: int, request: str, __: str) -> tuple[int, str, str] | None:
            with lock:
                fails = request in ("PUT", "POST") and draw.random() < share
            return _SLOW_DOWN if fails else None

        if store is not None:
            store.refuses = refuses
        ended = DistributedRunner(num_proc=-2, backend="torch").run(
            train,
            url,
            options,
            steps=int(arguments.seconds / _STEP_SECONDS),
            step_seconds=_STEP_SECONDS,
            every_seconds=max(1.0, arguments.seconds / 10),
            numbers=arguments.numbers,
            failing_share=share if store is None else 0.0,
        )
        if store is not None:
            ended["failed_writes"] = store.counts["refused"]
            store.refuses = lambda *_: None
        return {**ended, "problems": _problems(url, options, ended)}


def _problems(url: str, options: Options, ended: dict[str, Any]) -> list[str]:
    """The problems of the checkpoints of a training that has ended."""
    from sparkdl_runner.checkpoint import CheckpointManager

    found = load(url, options)
    problems = []
    if found["is_torn"] or found.get("step") != ended["steps"]:
        problems.append(f"the last of {ended['steps']} steps is {found}")
    with CheckpointManager(url, storage_options=options) as checkpoints:
        names = checkpoints.list()
        if len(names) != min(2, ended["saves"]):
            problems.append(f"{len(names)} checkpoints are left")
        problems += [one for name in names for one in checkpoints.verify(name)]
    return problems


def _wait_for_checkpoint(url: str, options: Options, training: Any) -> None:
    from sparkdl_runner.checkpoint import CheckpointManager

    with CheckpointManager(url, storage_options=options) as checkpoints:
        while not checkpoints.list() and not training.done():
            time.sleep(0.2)
