"""The cost of checkpoints: the wait for a copy, and the work beside the steps.

- For how long does a save block the step loop, and when is it complete? Saves of this package take
  turns with torch's own, which hash nothing; torch.save does not flush either. TMPDIR says where.
- How fast is a training that saves every so many seconds, beside one that does not? Stretches of
  both take turns, each as long as the time between two saves.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option

HELP = "what saving costs the step loop"
WIDTH, ROWS = 1024, 64
SECONDS, RATE = Figure(unit="s", better="less"), Figure(unit="steps/s", better="more")

OPTIONS = (
    Option("megabytes", 500, quick=100, help="parameters to be saved"),
    Option("repeat", 5, quick=2, help="saves of each kind"),
    Option("seconds", 90.0, quick=12, help="training with saves, in all"),
    Option("every-seconds", 30.0, quick=6, help="between two saves"),
    Option("training-megabytes", 100, help="parameters"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """The wait for a save, and the speed of a training that saves."""
    warnings.simplefilter("ignore")  # torch's asynchronous save warns that there is no device.
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-") as folder:
        yield from _waits(Path(folder), arguments)
        yield from _speed(Path(folder, "training"), arguments)


def _model(megabytes: int) -> Any:
    """Layers of 4 MB each."""
    import torch

    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(max(1, megabytes // 4))]
    for layer in layers:
        # Without this, numbers shrink from layer to layer to denormal ones, which are slow.
        torch.nn.init.xavier_normal_(layer.weight)
    return torch.nn.Sequential(*layers)


def _waits(folder: Path, arguments: argparse.Namespace) -> Iterator[Case]:
    import torch
    from torch.distributed.checkpoint import async_save

    from sparkdl_runner.checkpoint import CheckpointManager

    model, steps = _model(arguments.megabytes), count()
    background = CheckpointManager(folder / "asynchronous", keep_last=1)
    foreground = CheckpointManager(folder / "synchronous", keep_last=1, asynchronous=False)

    def torch_async_save() -> Callable[[], Any]:
        state: dict[str, Any] = {"model": model.state_dict()}
        saved: Any = async_save(state, checkpoint_id=folder / "torch", no_dist=True)
        return partial(saved.result)

    def torch_save() -> Callable[[], Any]:
        torch.save(model.state_dict(), folder / "model.pt")
        return lambda: None

    def ours(manager: CheckpointManager) -> Callable[[], Any]:
        manager.save(next(steps), model)
        return manager.wait

    with background, foreground:
        yield Case(
            name="save",
            figures={"step loop blocked": SECONDS, "save complete": SECONDS},
            ours={
                "asynchronous save": partial(_saved, partial(ours, background)),
                "synchronous save": partial(_saved, partial(ours, foreground)),
            },
            peers={
                "torch.save": partial(_saved, torch_save),
                "torch's async_save": partial(_saved, torch_async_save),
            },
            turns=arguments.repeat,
            warm_ups=1,
            facts={"ranks": 1, "time": "from the call"},
        )


def _saved(save: Callable[[], Callable[[], Any]]) -> dict[str, float]:
    """Calls what begins a save and returns what waits until that is complete."""
    started = time.perf_counter()
    wait = save()
    blocked = time.perf_counter() - started
    wait()
    return {"step loop blocked": blocked, "save complete": time.perf_counter() - started}


def _speed(folder: Path, arguments: argparse.Namespace) -> Iterator[Case]:
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    model, numbers = _model(arguments.training_megabytes), count()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    batch = torch.randn(ROWS, WIDTH)

    def stretch(seconds: float, *, is_saving: bool) -> dict[str, float]:
        steps, started, started_cpu = 0, time.perf_counter(), time.process_time()
        while not steps or time.perf_counter() - started < seconds:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            steps += 1
            if is_saving and steps == 1:
                checkpoints.save(next(numbers), model, optimizer)
        # All that a save costs is in its own stretch.
        checkpoints.wait()
        clock, cpu = time.perf_counter() - started, time.process_time() - started_cpu
        return {"steps by the clock": steps / clock, "steps by processor time": steps / cpu}

    every = arguments.every_seconds
    with CheckpointManager(folder, keep_last=1) as checkpoints:
        # Buffers are made once per training, not once per save.
        stretch(0, is_saving=True)
        yield Case(
            name="training",
            figures={"steps by the clock": RATE, "steps by processor time": RATE},
            ours={f"a save every {every:g} s": partial(stretch, every, is_saving=True)},
            peers={"without": partial(stretch, every, is_saving=False)},
            turns=max(1, round(arguments.seconds / every)),
            facts={"ranks": 1, "batch": ROWS, "time": "of steps, copies, and writing beside them"},
        )
