"""What checkpoints cost a training: the wait for a copy, and what goes on beside the steps.

Two questions:

- For how long is the step loop blocked by an asynchronous save, beside a synchronous save of the
  same checkpoint, written, hashed and flushed? Saves of both kinds take turns.
- How fast is a training that saves every so many seconds, beside one that does not? Stretches of
  both take turns, each as long as the time between two saves.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--megabytes", type=int, default=500, help="parameters to be saved")
    parser.add_argument("--repeat", type=int, default=5, help="saves of each kind")
    parser.add_argument("--seconds", type=float, default=120, help="training with saves, in all")
    parser.add_argument("--every-seconds", type=float, default=30, help="between two saves")
    parser.add_argument(
        "--training-megabytes", type=int, default=100, help="parameters that are trained"
    )
    parser.add_argument("--directory", type=Path, default=None, help="where checkpoints go")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmark-checkpoint.json"), help="the JSON file"
    )


def add_parser(benchmarks: Any) -> None:
    """Adds this benchmark to the command line."""
    parser = benchmarks.add_parser("checkpoint", help="what saving costs the step loop")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark; returns the exit status."""
    import torch

    directory = Path(tempfile.mkdtemp(prefix="checkpoint-benchmark-", dir=arguments.directory))
    try:
        blocked = _blocked(directory / "blocked", arguments.megabytes, arguments.repeat)
        speed = _speed(directory / "speed", arguments)
    finally:
        shutil.rmtree(directory)
    report = {
        "benchmark": "checkpoint",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "blocked": blocked,
        "training": speed,
    }
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{arguments.megabytes} MB of parameters, medians of {arguments.repeat} saves:")
    print(f"  asynchronous save blocks the step loop {blocked['asynchronous_median']:8.3f} s")
    print(f"  synchronous save                       {blocked['synchronous_median']:8.3f} s")
    print(f"  share                                  {blocked['share']:8.1%}")
    if speed:
        print(f"Training, a save every {arguments.every_seconds:g} s ({speed['saves']} saves):")
        print(f"  steps/s with saves                     {speed['with_median']:8.2f}")
        print(f"  steps/s without                        {speed['without_median']:8.2f}")
        print(f"  ratio                                  {speed['ratio']:8.3f}")
        print(f"  ratio of steps per processor second    {speed['cpu_ratio']:8.3f}")
    print(f"\nWritten to {arguments.output}")
    return 0


def _model(megabytes: int) -> Any:
    """Layers of 4 MB each."""
    import torch

    width = 1024
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(max(1, megabytes // 4))]
    for layer in layers:
        # Else numbers shrink from layer to layer until processors become slow with them.
        torch.nn.init.xavier_normal_(layer.weight)
    return torch.nn.Sequential(*layers)


def _blocked(directory: Path, megabytes: int, repeat: int) -> dict[str, Any]:
    from sparkdl_runner.checkpoint import CheckpointManager

    model = _model(megabytes)
    seconds: dict[str, list[float]] = {"asynchronous": [], "synchronous": []}
    settings = {"asynchronous": True, "synchronous": False}
    managers = {
        kind: CheckpointManager(directory / kind, keep_last=1, asynchronous=asynchronous)
        for kind, asynchronous in settings.items()
    }
    # The first save of each makes its buffers, and is no more part of the figures than a first
    # step is.
    for number in range(repeat + 1):
        for kind, manager in managers.items():
            start = time.perf_counter()
            manager.save(number, model)
            elapsed = time.perf_counter() - start
            manager.wait()
            if number:
                seconds[kind].append(elapsed)
    for manager in managers.values():
        manager.close()
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    return {
        "seconds": seconds,
        "asynchronous_median": medians["asynchronous"],
        "synchronous_median": medians["synchronous"],
        "share": medians["asynchronous"] / medians["synchronous"],
    }


def _speed(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Stretches with and without saves take turns, so that both see the same machine."""
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    model = _model(arguments.training_megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    batch = torch.randn(64, 1024)
    stretch = arguments.every_seconds
    speeds: dict[bool, list[float]] = {True: [], False: []}
    # Beside the time on the wall, the time on the processors: what else runs on the machine
    # changes the first far more than the second.
    per_cpu: dict[bool, list[float]] = {True: [], False: []}
    step = 0
    saves = 0
    with CheckpointManager(directory, keep_last=1) as checkpoints:
        for _ in range(3):
            _step(model, optimizer, batch)
        # Buffers are made once per training, not once per save.
        checkpoints.save(0, model, optimizer)
        checkpoints.wait()
        for number in range(2 * max(1, round(arguments.seconds / stretch))):
            # With and without, then without and with, so that a machine that gets slower or
            # faster with time favours neither.
            is_saving = number % 4 in (0, 3)
            steps = 0
            start, cpu_start = time.perf_counter(), time.process_time()
            while (elapsed := time.perf_counter() - start) < stretch:
                _step(model, optimizer, batch)
                steps += 1
                step += 1
                if is_saving and steps == 1:
                    checkpoints.save(step, model, optimizer)
                    saves += 1
            # All that a save costs is in its own stretch.
            checkpoints.wait()
            elapsed = time.perf_counter() - start
            speeds[is_saving].append(steps / elapsed)
            per_cpu[is_saving].append(steps / (time.process_time() - cpu_start))
    medians = {is_saving: statistics.median(values) for is_saving, values in speeds.items()}
    return {
        "steps_per_second_with": speeds[True],
        "steps_per_second_without": speeds[False],
        "with_median": medians[True],
        "without_median": medians[False],
        "ratio": _ratio(speeds),
        "cpu_ratio": _ratio(per_cpu),
        "saves": saves,
    }


def _ratio(speeds: dict[bool, list[float]]) -> float:
    """Of stretches beside each other, as the machine may be busier at one time than another."""
    pairs = zip(speeds[True], speeds[False], strict=True)
    return statistics.median(with_saves / without for with_saves, without in pairs)


def _step(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
