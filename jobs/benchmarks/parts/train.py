"""How fast one training script is here, beside the launchers that libraries bring.

Two ranks of this host run it in fresh processes, in turns, each with one thread where there are two
cores. The loop's rate is that of all ranks after the first steps, by the clock and by the ranks'
processor time; the time of the whole command has launch and imports in it, and its processor time
the launcher's. Models of three kinds learn from one batch again and again; one learns from a table,
by this package's loader and by torch's DataLoader; one learns digits, and says how many it tells
rightly. Trainer is beside a loop by hand, both started here; and each framework is started by both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.peers.script_launchers import HERE, RANKS, THREADS, peer_of, run_script
from benchmarks.ranks.training_script import BATCH, WARM_UP, WIDTH
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import positive

HELP = "samples/s of trainings, beside torchrun, horovodrun and frameworks' own launchers"
MODELS, LIBRARIES = ("mlp", "cnn", "transformer"), ("torch", "horovod")
FRAMEWORKS = ("lightning", "accelerate", "transformers", "keras", "tensorflow")
CASES = (
    *(f"{model}-{library}" for model in MODELS for library in LIBRARIES),
    *(f"digits-{library}" for library in LIBRARIES),
    *("table", "trainer", *FRAMEWORKS),
)
LEAST, LEAST_OF_FRAMEWORKS, LEAST_ACCURACY = 0.99, 0.98, 0.85
ROWS = 100_000
STEPS = {"cnn": 0.4, "transformer": 0.5}
"""The steps of a model, as a share of those of the others: each loop takes about as long."""
Side = tuple[str, str, str]
"""Who starts the script, which of its ways trains, and what feeds it."""

QUICK = ["--turns", "1", "--most-turns", "1", "--steps", "100"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--cases", nargs="+", choices=CASES, default=None, metavar="NAME")
    parser.add_argument("--turns", type=positive, default=10, help="trainings of each launcher")
    parser.add_argument("--most-turns", type=positive, default=20, help="until ratios are known")
    parser.add_argument("--steps", type=positive, default=1000, help="of a training of the MLP")


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """The cases that were chosen; by default all whose framework is installed."""
    for name in arguments.cases or CASES:
        if arguments.cases or name not in FRAMEWORKS or importlib.util.find_spec(name):
            with tempfile.TemporaryDirectory(prefix="train-benchmark-") as folder:
                yield _case(name, arguments, Path(folder))


def _case(name: str, arguments: argparse.Namespace, folder: Path) -> Case:
    kind, _, library = name.partition("-")
    library = library or ("tensorflow" if kind == "tensorflow" else "torch")
    ours, peers = _sides(kind, library, folder)
    model = kind if kind in MODELS else "mlp"
    steps = max(2 * WARM_UP, round(arguments.steps * STEPS.get(model, 1)))
    goals = dict.fromkeys(ours, LEAST_OF_FRAMEWORKS if kind in FRAMEWORKS else LEAST)
    speed = Figure(unit="samples/s", better="more", least_ratios=goals)
    seconds = Figure(unit="s", better="less")
    figures = {"loop": speed, "by processor": speed, "command": seconds}
    if kind == "trainer":
        figures["to the first step"] = seconds
    if kind == "digits":
        figures["accuracy"] = Figure(unit="", better="more", bound=LEAST_ACCURACY)
    run = partial(_trained, library, model, steps, folder)
    return Case(
        name=name,
        figures=figures,
        ours={side: partial(run, *one) for side, one in ours.items()},
        peers={side: partial(run, *one) for side, one in peers.items()},
        turns=arguments.turns,
        most_turns=arguments.most_turns,
        facts={
            "ranks": RANKS,
            "scaling": "weak",
            "threads of a rank": THREADS,
            "batch of a rank": BATCH,
            "global batch": BATCH * RANKS,
            "steps": steps,
            "model": model,
            "inputs": {side: feed.split()[0] for side, (*_, feed) in {**ours, **peers}.items()},
            "time": f"loop: of all ranks after {WARM_UP} steps; command: with launch and imports",
        },
    )


def _sides(kind: str, library: str, folder: Path) -> tuple[dict[str, Side], dict[str, Side]]:
    """What this package does in a case, and what its peer does."""
    there = peer_of(library)
    way = kind if kind in FRAMEWORKS else {"torch": "ddp"}.get(library, library)
    if kind not in ("table", "trainer"):
        feed = "digits" if kind == "digits" else "synthetic"
        return {HERE: (HERE, way, feed)}, {there: (there, way, feed)}
    _write(folder / "table")
    url = f"file://{folder}/table"
    if kind == "trainer":
        sides = {one: (HERE, one, f"loader {url}") for one in ("trainer", way)}
        return {"Trainer": sides["trainer"]}, {"by hand": sides[way]}
    return (
        {f"{HERE}, converter": (HERE, way, f"loader {url}")},
        {f"{there}, DataLoader": (there, way, f"dataloader {url}")},
    )


def _trained(
    library: str, model: str, steps: int, folder: Path, launcher: str, way: str, feed: str
) -> dict[str, float]:
    arguments = [way, model, feed, str(steps), str(folder)]
    started, seconds = run_script(launcher, library, "training_script.py", arguments)
    ranks = [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(RANKS)]
    return {
        "loop": RANKS * ranks[0]["clock"],
        "by processor": statistics.harmonic_mean([one["processor"] for one in ranks]),
        "command": seconds,
        "to the first step": ranks[0]["first"] - started,
        "accuracy": ranks[0].get("accuracy", 0.0),
    }


def _write(folder: Path) -> None:
    """A table whose label is the first ten features' largest."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    features = np.random.default_rng(0).standard_normal((ROWS, WIDTH), dtype=np.float32)
    columns = {
        "features": pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), WIDTH),
        "label": pa.array(features[:, :10].argmax(axis=1)),
    }
    pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=4096)
