"""The cost of checkpoints: the wait for a copy, and the work beside the steps.

- For how long does a save block the step loop, and when is it complete? Saves of this package take
  turns with synchronous ones, and with torch's own, which neither hash nor flush what they write.
- How fast is a training that saves every so many seconds, beside one that does not? Stretches of
  both take turns, each as long as the time between two saves.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import positive

HELP = "what saving costs the step loop"
QUICK = [
    *("--megabytes", "100", "--repeat", "2", "--training-megabytes", "20"),
    *("--seconds", "12", "--every-seconds", "6"),
]
ROWS = 64

Save = Callable[[int], Callable[[], Any]]
"""Saves a step, and returns what waits until that is complete."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--megabytes", type=positive, default=500, help="parameters to be saved")
    parser.add_argument("--repeat", type=positive, default=5, help="saves of each kind")
    parser.add_argument("--seconds", type=float, default=90, help="training with saves, in all")
    parser.add_argument("--every-seconds", type=float, default=30, help="between two saves")
    parser.add_argument(
        "--training-megabytes", type=positive, default=100, help="parameters that are trained"
    )
    parser.add_argument("--directory", type=Path, default=None, help="where checkpoints go")


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """The wait for a save, and the speed of a training that saves."""
    # torch's asynchronous save warns at each call that no device is there.
    warnings.simplefilter("ignore")
    prefix = "checkpoint-benchmark-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=arguments.directory) as folder:
        yield from _waits(Path(folder), arguments)
        yield from _speed(Path(folder, "training"), arguments)


def _model(megabytes: int) -> Any:
    """Layers of 4 MB each."""
    import torch

    width = 1024
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(max(1, megabytes // 4))]
    for layer in layers:
        # Without this, numbers shrink from layer to layer to denormal ones, which are slow.
        torch.nn.init.xavier_normal_(layer.weight)
    return torch.nn.Sequential(*layers)


def _waits(folder: Path, arguments: argparse.Namespace) -> Iterator[Case]:
    """Saves, whose buffers the warm-up makes: these are made once per training."""
    from sparkdl_runner.checkpoint import CheckpointManager

    model = _model(arguments.megabytes)
    with ExitStack() as stack:

        def ours(name: str, *, asynchronous: bool) -> Save:
            manager = CheckpointManager(folder / name, keep_last=1, asynchronous=asynchronous)
            stack.callback(manager.close)

            def save(step: int) -> Callable[[], Any]:
                manager.save(step, model)
                return manager.wait

            return save

        sides: dict[str, Save] = {
            "asynchronous save": ours("asynchronous", asynchronous=True),
            "synchronous save": ours("synchronous", asynchronous=False),
            "torch.save": partial(_torch_save, model, folder / "model.pt"),
            "torch's async_save": partial(_torch_async_save, model, folder / "distributed"),
        }
        measures = {name: partial(_saved, save, count()) for name, save in sides.items()}
        seconds = Figure(unit="s", better="less")
        yield Case(
            name="save",
            figures={"step loop blocked": seconds, "save complete": seconds},
            ours={"asynchronous save": measures.pop("asynchronous save")},
            peers=measures,
            turns=arguments.repeat,
            warm_ups=1,
            facts={"ranks": 1, "megabytes": arguments.megabytes, "time": "from the call"},
        )


def _saved(save: Save, steps: Iterator[int]) -> dict[str, float]:
    started = time.perf_counter()
    wait = save(next(steps))
    blocked = time.perf_counter() - started
    wait()
    return {"step loop blocked": blocked, "save complete": time.perf_counter() - started}


def _torch_save(model: Any, path: Path, _: int) -> Callable[[], Any]:
    import torch

    torch.save(model.state_dict(), path)
    return lambda: None


def _torch_async_save(model: Any, folder: Path, step: int) -> Callable[[], Any]:
    from torch.distributed.checkpoint import async_save

    saved: Any = async_save(
        {"model": model.state_dict()}, checkpoint_id=folder / str(step), no_dist=True
    )

    def wait() -> None:
        saved.result()
        shutil.rmtree(folder / str(step - 1), ignore_errors=True)

    return wait


def _speed(folder: Path, arguments: argparse.Namespace) -> Iterator[Case]:
    """A training, of which every other stretch begins with a save."""
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    model = _model(arguments.training_megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    batch = torch.randn(ROWS, 1024)

    def train() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    with CheckpointManager(folder, keep_last=1) as checkpoints:
        numbers = count()

        def stretch(*, is_saving: bool) -> dict[str, float]:
            steps = 0
            started, started_cpu = time.perf_counter(), time.process_time()
            while time.perf_counter() - started < arguments.every_seconds:
                train()
                steps += 1
                if is_saving and steps == 1:
                    checkpoints.save(next(numbers), model, optimizer)
            # All that a save costs is in its own stretch.
            checkpoints.wait()
            return {
                "steps by the clock": steps / (time.perf_counter() - started),
                "steps by processor time": steps / (time.process_time() - started_cpu),
            }

        for _ in range(3):
            train()
        # Buffers are made once per training, not once per save.
        checkpoints.save(next(numbers), model, optimizer)
        checkpoints.wait()
        rate = Figure(unit="steps/s", better="more")
        yield Case(
            name="training",
            figures={"steps by the clock": rate, "steps by processor time": rate},
            ours={f"a save every {arguments.every_seconds:g} s": partial(stretch, is_saving=True)},
            peers={"without": partial(stretch, is_saving=False)},
            turns=max(1, round(arguments.seconds / arguments.every_seconds)),
            facts={
                "ranks": 1,
                "batch of a rank": ROWS,
                "global batch": ROWS,
                "megabytes": 2 * arguments.training_megabytes,
                "time": "steps, copies and what is written beside them",
            },
        )
