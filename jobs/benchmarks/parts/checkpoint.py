"""The cost of checkpoints: the wait for a copy, and the work beside the steps.

Two questions, and with ``--url`` the third alone:

- For how long is the step loop blocked by an asynchronous save, beside a synchronous save of the
  same checkpoint, written, hashed and flushed? Saves of both kinds take turns.
- How fast is a training that saves every so many seconds, beside one that does not? Stretches of
  both take turns, each as long as the time between two saves.
- How long does it take to save and to restore in a folder of that URL, on HDFS say, beside one of
  the local disk? Both take turns. The first save there is left out: it also begins the attempt.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import aligned, listed, positive, ratio, with_and_without
from sparkdl_runner.base.filesystem import join_url, open_filesystem

HELP = "what saving costs the step loop"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--megabytes", type=positive, default=500, help="parameters to be saved")
    parser.add_argument("--repeat", type=positive, default=5, help="saves of each kind")
    parser.add_argument("--seconds", type=float, default=120, help="training with saves, in all")
    parser.add_argument("--every-seconds", type=float, default=30, help="between two saves")
    parser.add_argument(
        "--training-megabytes", type=positive, default=100, help="parameters that are trained"
    )
    parser.add_argument("--directory", type=Path, default=None, help="where checkpoints go")
    parser.add_argument("--url", default=None, help="measure this folder beside the directory")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures the wait for a save, and the speed of a training that saves."""
    with tempfile.TemporaryDirectory(
        prefix="checkpoint-benchmark-", dir=arguments.directory
    ) as folder:
        if arguments.url is not None:
            return {"remote": _remote(folder, arguments)}
        blocked = _blocked(Path(folder, "blocked"), arguments.megabytes, arguments.repeat)
        training = _speed(Path(folder, "speed"), arguments)
    return {"blocked": blocked, "training": training}


def table(report: Mapping[str, Any]) -> str:
    """The wait and the speed, or the times on other storage."""
    if "remote" in report:
        return _remote_table(report)
    settings, blocked, speed = report["settings"], report["blocked"], report["training"]
    wait = {
        "asynchronous save blocks the step loop": f"{blocked['asynchronous_median']:.3f} s",
        "synchronous save": f"{blocked['synchronous_median']:.3f} s",
        "share": f"{blocked['share']:.1%}",
    }
    steps = {
        "steps/s with saves": f"{speed['with_median']:.2f}",
        "steps/s without": f"{speed['without_median']:.2f}",
        "ratio": f"{speed['ratio']:.3f}",
        "ratio of steps per processor second": f"{speed['cpu_ratio']:.3f}",
    }
    return (
        f"{settings['megabytes']} MB of parameters, medians of {settings['repeat']} saves:\n"
        f"{listed(wait)}\n"
        f"Training, a save every {settings['every_seconds']:g} s ({speed['saves']} saves):\n"
        f"{listed(steps)}"
    )


def is_good(report: Mapping[str, Any]) -> bool:
    """Always true: the figures have no bound."""
    return True


def _model(megabytes: int) -> Any:
    """Layers of 4 MB each."""
    import torch

    width = 1024
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(max(1, megabytes // 4))]
    for layer in layers:
        # Without this, numbers shrink from layer to layer to denormal ones, which are slow.
        torch.nn.init.xavier_normal_(layer.weight)
    return torch.nn.Sequential(*layers)


def _blocked(directory: Path, megabytes: int, repeat: int) -> dict[str, Any]:
    from sparkdl_runner.checkpoint import CheckpointManager

    model = _model(megabytes)
    seconds: dict[str, list[float]] = {"asynchronous": [], "synchronous": []}
    managers = {
        kind: CheckpointManager(directory / kind, keep_last=1, asynchronous=kind == "asynchronous")
        for kind in seconds
    }
    # The first save of each makes its buffers, and counts no more than a first step would.
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
    medians = {f"{kind}_median": statistics.median(values) for kind, values in seconds.items()}
    share = medians["asynchronous_median"] / medians["synchronous_median"]
    return {"seconds": seconds, **medians, "share": share}


def _remote(local: str, arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds of saves and restores, by place."""
    from sparkdl_runner.checkpoint import CheckpointManager

    model = _model(arguments.megabytes)
    url = join_url(arguments.url, f"benchmark-{os.getpid()}")
    filesystem, path = open_filesystem(url)
    places = {"local": local, "url": url}
    seconds: dict[str, dict[str, list[float]]] = {"save": {}, "restore": {}}
    try:
        managers = {place: CheckpointManager(where, keep_last=1) for place, where in places.items()}
        for number in range(arguments.repeat + 1):
            for place, manager in managers.items():
                start = time.perf_counter()
                manager.save(number, model)
                manager.wait()
                saved = time.perf_counter()
                manager.restore(model)
                restored = time.perf_counter()
                if number:
                    seconds["save"].setdefault(place, []).append(saved - start)
                    seconds["restore"].setdefault(place, []).append(restored - saved)
        for manager in managers.values():
            manager.close()
    finally:
        filesystem.delete_dir(path)
    return seconds


def _remote_table(report: Mapping[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("", "local", "url", "of local", "worst")]
    for action, seconds in report["remote"].items():
        local, url = seconds["local"], seconds["url"]
        medians = [f"{statistics.median(one):.2f} s" for one in (local, url)]
        worst = min(ours / theirs for ours, theirs in zip(local, url, strict=True))
        rows.append((action, *medians, f"{ratio(local, url):.2f}", f"{worst:.2f}"))
    settings = report["settings"]
    return f"{settings['megabytes']} MB, {settings['repeat']} turns:\n{aligned(rows)}"


def _speed(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Stretches with and without saves take turns, so that both see the same machine."""
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    model = _model(arguments.training_megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    batch = torch.randn(64, 1024)
    speeds: dict[bool, list[float]] = {True: [], False: []}
    # Beside the time on the clock, the time on the processors: what else runs on the machine
    # changes the first far more than the second.
    per_cpu: dict[bool, list[float]] = {True: [], False: []}
    step = 0
    with CheckpointManager(directory, keep_last=1) as checkpoints:
        for _ in range(3):
            _step(model, optimizer, batch)
        # Buffers are made once per training, not once per save.
        checkpoints.save(0, model, optimizer)
        checkpoints.wait()
        stretches = max(1, round(arguments.seconds / arguments.every_seconds))
        for is_saving in with_and_without(stretches):
            first_step = step
            start, cpu_start = time.perf_counter(), time.process_time()
            while time.perf_counter() - start < arguments.every_seconds:
                _step(model, optimizer, batch)
                step += 1
                if is_saving and step == first_step + 1:
                    checkpoints.save(step, model, optimizer)
            # All that a save costs is in its own stretch.
            checkpoints.wait()
            steps = step - first_step
            speeds[is_saving].append(steps / (time.perf_counter() - start))
            per_cpu[is_saving].append(steps / (time.process_time() - cpu_start))
    return {
        "steps_per_second_with": speeds[True],
        "steps_per_second_without": speeds[False],
        "with_median": statistics.median(speeds[True]),
        "without_median": statistics.median(speeds[False]),
        "ratio": ratio(speeds[True], speeds[False]),
        "cpu_ratio": ratio(per_cpu[True], per_cpu[False]),
        "saves": stretches,
    }


def _step(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
