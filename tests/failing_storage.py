"""Checkpoints on a local folder and on S3: read by others while a training saves, and written to a
storage that fails.

First, processes load the newest checkpoint while a training of two ranks saves one each second
and keeps two. None may be torn, and the training must not notice. A checkpoint of step N holds only
Ns.

Then one write in three fails at random: of the S3 server's front, which answers 503; of the local
folder, in the rank. Trainings with and without failures run in turns. The time lost is what their
loops spent in ``save`` and ``close``.

``make failing-storage N=100`` takes minutes, and so is no test of the suites.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from benchmarks.servers.object_store import ObjectStore, object_store

from sparkdl_runner import DistributedRunner

_SLOW_DOWN = (503, "SlowDown", "Please reduce your request rate.")
_MOST_STEPS = 1_000_000
_STEP_SECONDS = 0.02
_AT_ONCE = 4
_LAYERS, _NUMBERS = 4, 1_000_000
_FAILING_SHARE = 1 / 3

Options = Mapping[str, Any] | None


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


def train(
    checkpoint_url: str,
    options: Options,
    *,
    steps: int,
    step_seconds: float,
    every_seconds: float,
    failing_share: float = 0.0,
) -> dict[str, Any]:
    """Fills a model with the number of each step, and saves it.

    Args:
        checkpoint_url: Where.
        options: Of the storage.
        steps: The most; fewer if the training is asked to stop.
        step_seconds: What a step takes.
        every_seconds: Between two checkpoints, of which two stay.
        failing_share: Of the writes of this rank to a local folder, which fail before they begin.

    Returns:
        The steps, the checkpoints, the seconds of the whole loop with its last save, by the clock
        and of rank 0's processor, and those that it spent in ``save`` and ``close``.
    """
    import time

    import torch
    import torch.distributed as dist

    from sparkdl_runner.checkpoint import CheckpointManager, should_stop

    dist.init_process_group("gloo")
    failed = fail_writes(failing_share) if failing_share else []
    layers = [torch.nn.Linear(1, _NUMBERS // _LAYERS, bias=False) for _ in range(_LAYERS)]
    model = torch.nn.Sequential(*layers)
    saves = step = 0
    waited = 0.0
    dist.barrier()
    began, used = time.monotonic(), time.process_time()
    with CheckpointManager(
        checkpoint_url, every_seconds=every_seconds, keep_last=2, storage_options=options
    ) as checkpoints:
        for step in range(1, steps + 1):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(step)
            time.sleep(step_seconds)
            stop = should_stop()
            if checkpoints.due(step) or stop or step == steps:
                at = time.monotonic()
                checkpoints.save(step, model, extra={"step": step})
                waited += time.monotonic() - at
                saves += 1
            if stop:
                break
        at = time.monotonic()
    waited += time.monotonic() - at
    seconds, used = time.monotonic() - began, time.process_time() - used
    dist.destroy_process_group()
    return {
        "steps": step,
        "saves": saves,
        "seconds": seconds,
        "processor_s": used,
        "waited": waited,
        "failed_writes": len(failed),
    }


def fail_writes(share: float) -> list[str]:
    """Makes some writes of this process to local disk fail; returns the list of them."""
    import errno
    import random

    from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage

    failed: list[str] = []
    write, draw = LocalStorage.write, random.Random()

    def may_fail(self: LocalStorage, name: str, content: bytes) -> None:
        if draw.random() < share:
            failed.append(name)
            raise OSError(errno.ETIMEDOUT, "the mount does not answer", name)
        write(self, name, content)

    LocalStorage.write = may_fail  # type: ignore[method-assign]
    return failed


def load(checkpoint_url: str, options: Options) -> dict[str, Any]:
    """Loads the newest checkpoint in this process.

    Returns:
        Its step; ``is_torn``, whether anything in it is of another step; and the seconds.
    """
    import time

    from sparkdl_runner.checkpoint import Checkpoint

    began = time.monotonic()
    try:
        found = Checkpoint.load(checkpoint_url, storage_options=options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "is_torn": False}
    values = [
        value for tensor in (found.model or {}).values() for value in tensor.unique().tolist()
    ]
    is_torn = {found.extra["step"], *values} != {found.step} or len(values) != _LAYERS
    return {"step": found.step, "is_torn": is_torn, "seconds": time.monotonic() - began}


def loads(kind: str, count: int, seed: int) -> list[str]:
    """Lets processes load while a training saves; tells of it, and returns what is wrong."""
    runner = DistributedRunner(num_proc=-2, backend="torch")
    draw = random.Random(seed)
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
        )
        _wait_for_checkpoint(url, options, training)
        asked = []
        for _ in range(count):
            time.sleep(draw.uniform(0, 1))
            asked.append(readers.submit(load, url, options))
        found = [one.result() for one in asked]
        runner.request_stop("all have loaded")
        ended = training.result()
        problems = _problems(url, options, ended)
    torn = [f"a load was torn: {one}" for one in found if one["is_torn"]]
    errors = [one["error"] for one in found if "error" in one]
    print(
        f"{kind}: {len(found)} loads of {len({one.get('step') for one in found})} checkpoints, "
        f"{len(torn)} torn, {len(errors)} failed; the training saved {ended['saves']} in "
        f"{ended['seconds']:.0f} s",
        flush=True,
    )
    return [*torn, *errors, *problems]


def failing_writes(kind: str, seconds: float) -> list[str]:
    """Trains with failing writes and without; tells what they cost, and returns what is wrong."""
    calm, failing = (_training(kind, share, seconds) for share in (0, _FAILING_SHARE))
    lost = (failing["waited"] - calm["waited"]) / calm["seconds"]
    print(
        f"{kind}: {failing['failed_writes']} failed writes, {lost:+.1%} time (by the clock "
        f"{failing['seconds'] / calm['seconds'] - 1:+.1%}), {failing['processor_s']:.2f} s of rank "
        f"0's processor in place of {calm['processor_s']:.2f}",
        flush=True,
    )
    problems: list[str] = calm["problems"] + failing["problems"]
    return problems if failing["failed_writes"] else [*problems, "no write has failed"]


def _training(kind: str, share: float, seconds: float) -> dict[str, Any]:
    with _place(kind) as (url, options, store):
        draw, lock = random.Random(), threading.Lock()

        def refuses(_: int, request: str, __: str) -> tuple[int, str, str] | None:
            with lock:
                fails = request in ("PUT", "POST") and draw.random() < share
            return _SLOW_DOWN if fails else None

        if store is not None:
            store.refuses = refuses
        ended: dict[str, Any] = DistributedRunner(num_proc=-2, backend="torch").run(
            train,
            url,
            options,
            steps=int(seconds / _STEP_SECONDS),
            step_seconds=_STEP_SECONDS,
            every_seconds=max(1.0, seconds / 10),
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


def main() -> None:
    """Does both on each storage, tells of all that is wrong, and exits with 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", choices=("local", "s3"), nargs="+", default=["local", "s3"])
    parser.add_argument("--loads", type=int, default=50, help="each by a process of its own")
    parser.add_argument("--pairs", type=int, default=3, help="of trainings with failures, without")
    parser.add_argument("--seconds", type=float, default=30.0, help="what such a training takes")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    wrong = Counter[str]()
    for kind in arguments.storage:
        wrong.update(loads(kind, arguments.loads, arguments.seed) if arguments.loads else [])
        for _ in range(arguments.pairs):
            wrong.update(failing_writes(kind, arguments.seconds))
    print("\n".join([*wrong, f"{wrong.total()} things are wrong"]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
