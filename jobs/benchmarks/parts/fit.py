"""How fast Trainer is, beside a loop that is written by hand for torch.distributed.

Both train one model on two ranks of the local launcher, from loaders of the same kind:

- samples/s: in one run, epochs of both take turns. The loop by hand logs nothing. Of each there are
  several: two that run the same code may differ by 5%, by where their memory lies.
- from the call of the runner to the end of the first step, each in runs of their own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import in_turns, listed, positive, ratio, summary, with_and_without

HELP = "Trainer beside a loop that is written by hand"
RANKS = 2
WIDTH = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--rows", type=positive, default=40_000, help="in an epoch")
    parser.add_argument("--batch", type=positive, default=128, help="rows in a batch of a rank")
    parser.add_argument("--hidden", type=positive, default=512, help="width of the model")
    parser.add_argument("--epochs", type=positive, default=12, help="measured epochs of each")
    parser.add_argument("--starts", type=positive, default=5, help="measured first steps of each")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures samples/s, and the way to the first step."""
    from sparkdl_runner import DistributedRunner
    from sparkdl_runner.data import make_spark_converter

    with tempfile.TemporaryDirectory(prefix="fit-benchmark-") as folder:
        _write(Path(folder), arguments.rows)
        run: Callable[..., Any] = partial(
            DistributedRunner(
                num_proc=-RANKS, backend="torch", driver_log_verbosity="log_callback_only"
            ).run,
            data=make_spark_converter(f"file://{folder}"),
            batch=arguments.batch,
            hidden=arguments.hidden,
        )
        print("Epochs of both in turns:", flush=True)
        turns = list(with_and_without(arguments.epochs))
        speed = _compared(*run(_epochs_in_turns(), turns=turns))
        print("First steps:", flush=True)
        starts = {name: partial(_seconds_to_first_step, run, ours) for name, ours in _WHO.items()}
        first = in_turns(starts, arguments.starts, warm_up=True)
    seconds = {name: summary(one) for name, one in first.items()}
    return {"ranks": RANKS, "speed": speed, "first_step": seconds}


_WHO = {"Trainer": True, "by hand": False}


def _compared(speeds: dict[bool, list[float]], per_cpu: dict[bool, list[float]]) -> dict[str, Any]:
    return {
        **{name: speeds[ours] for name, ours in _WHO.items()},
        "ratio": ratio(speeds[True], speeds[False]),
        "cpu_ratio": ratio(per_cpu[True], per_cpu[False]),
    }


def table(report: Mapping[str, Any]) -> str:
    """The speed and the start."""
    speed, first = report["speed"], report["first_step"]
    figures = {
        "samples/s, Trainer": f"{statistics.median(speed['Trainer']):,.0f}",
        "samples/s, by hand": f"{statistics.median(speed['by hand']):,.0f}",
        "ratio, median of pairs": f"{speed['ratio']:.3f}",
        "ratio of samples per processor second": f"{speed['cpu_ratio']:.3f}",
    }
    for name, one in first.items():
        told = f"{one['median']:.2f} s" if "median" in one else one["unavailable"]
        figures[f"call to first step, {name}"] = told
    return listed(figures)


def is_good(report: Mapping[str, Any]) -> bool:
    """Both gave all figures."""
    return all("median" in one for one in report["first_step"].values())


def _write(folder: Path, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    features = generator.standard_normal((rows, WIDTH), dtype=np.float32)
    columns = {
        "features": pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), WIDTH),
        "label": pa.array((features[:, :10]).argmax(axis=1)),
    }
    pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=4096)


def _seconds_to_first_step(run: Callable[..., Any], ours: bool) -> float:
    started = time.time()
    return float(run(_first_step(), ours=ours)) - started


# What ranks do. Nested functions travel by value, so that no rank has to find this file. --------


def _first_step() -> Callable[..., float]:
    stretches = _stretches()

    def first_step(*, data: Any, batch: int, hidden: int, ours: bool) -> float:
        import time

        train = stretches(data, batch, hidden, ours, max_steps=1)
        train()
        return time.time()

    return first_step


def _epochs_in_turns() -> Callable[..., tuple[dict[bool, list[float]], dict[bool, list[float]]]]:
    stretches = _stretches()

    def epochs_in_turns(*, data: Any, batch: int, hidden: int, turns: list[bool]) -> Any:
        import time

        pairs = [
            {ours: stretches(data, batch, hidden, ours) for ours in order}
            for order in [(True, False), (False, True), (True, False)]
        ]
        speeds: dict[bool, list[float]] = {True: [], False: []}
        per_cpu: dict[bool, list[float]] = {True: [], False: []}
        for pair in pairs:
            for train in pair.values():
                train()
        for turn, ours in enumerate(turns):
            train = pairs[turn // 2 % len(pairs)][ours]
            start, cpu_start = time.perf_counter(), time.process_time()
            samples = train()
            speeds[ours].append(samples / (time.perf_counter() - start))
            per_cpu[ours].append(samples / (time.process_time() - cpu_start))
        return speeds, per_cpu

    return epochs_in_turns


def _stretches() -> Callable[..., Callable[[], int]]:
    def stretches(
        data: Any, batch: int, hidden: int, ours: bool, max_steps: int | None = None
    ) -> Callable[[], int]:
        """Returns what trains one more epoch, and tells the samples of all ranks."""
        from functools import partial
        from itertools import islice

        import torch
        import torch.distributed as dist
        from torch import nn

        torch.set_num_threads(1)
        loader = data.make_torch_dataloader(
            batch, num_epochs=1, seed=1, tail="drop"
        ).__enter__()  # Open for as long as the rank lives.
        torch.manual_seed(0)
        first = [nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        model = nn.Sequential(*first, nn.Linear(hidden, 10))
        make_optimizer = partial(torch.optim.Adam, lr=1e-3)
        samples: int = len(loader) * loader.global_batch_size
        epochs = 0
        if ours:
            from sparkdl_runner import Trainer

            trainer = Trainer(model, make_optimizer, nn.functional.cross_entropy)

            class FirstStep(Exception):  # noqa: N818 - it is no error
                pass

            def stop(_: Trainer) -> None:
                raise FirstStep

            def train_by_trainer() -> int:
                nonlocal epochs
                epochs += 1
                if max_steps:
                    trainer.on_step = stop
                try:
                    trainer.fit(loader, epochs=epochs)
                except FirstStep:
                    pass
                return samples

            return train_by_trainer
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        network = nn.parallel.DistributedDataParallel(model)
        optimizer = make_optimizer(network.parameters())

        def train_by_hand() -> int:
            nonlocal epochs
            loader.set_epoch(epochs)
            epochs += 1
            for rows in islice(loader, max_steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(rows["features"]), rows["label"]).backward()
                optimizer.step()
            return samples

        return train_by_hand

    return stretches
