"""How fast one training script is here, beside the launchers that libraries bring.

Two ranks of this host run it in fresh processes, in turns. The loop's rate is that of all ranks
after the first steps, by the clock and by the ranks' processor time; the time of the whole command
has launch and imports in it. Three models learn from one batch again and again; one learns a table,
by our loader, Trainer and torch's DataLoader; and one learns digits, of which it tells others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.peers.script_launchers import HERE, PEERS, RANKS, THREADS, run_script
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option

HELP = "samples/s of trainings, beside torchrun and horovodrun"
MODELS, LIBRARIES = ("mlp", "cnn", "transformer"), ("torch", "horovod")
CASES = (
    *(f"{model}-{library}" for model in MODELS for library in LIBRARIES),
    *(f"digits-{library}" for library in LIBRARIES),
    *("table", "trainer"),
)
ROWS = 100_000
STEPS = {
    "cnn-torch": 0.65,
    "transformer-torch": 0.6,
    "mlp-horovod": 0.8,
    "cnn-horovod": 0.5,
    "transformer-horovod": 0.5,
}
"""Steps as a share of those of the other cases: each loop takes some two seconds."""
Side = tuple[str, str, str]
"""Who starts the script, which of its ways trains, and what feeds it."""

OPTIONS = (
    Option("cases", list(CASES), quick=["digits-horovod", "table", "trainer"], choices=CASES),
    Option("turns", 10, quick=1, help="of the three models' cases"),
    Option("other-turns", 6, quick=1, help="of the other cases"),
    Option("steps", 350, quick=150, help="of a training of the MLP by torch"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """The cases that were chosen."""
    with tempfile.TemporaryDirectory(prefix="train-benchmark-") as folder:
        for name in arguments.cases:
            yield _case(name, arguments, Path(folder))


def _case(name: str, arguments: argparse.Namespace, folder: Path) -> Case:
    from benchmarks.ranks.training_script import BATCH, WARM_UP

    kind, library = name.split("-") if "-" in name else (name, "torch")
    ours, peers = _sides(kind, library, folder)
    model = kind if kind in MODELS else "mlp"
    steps = max(2 * WARM_UP, round(arguments.steps * STEPS.get(name, 1)))
    goals = dict.fromkeys(ours, 0.99) if kind in MODELS else {}
    speed = Figure(unit="samples/s", better="more", least_ratios=goals)
    seconds = Figure(unit="s", better="less")
    figures = {"loop": speed, "by processor": speed}
    figures |= {"command": seconds, "to the first step": seconds}
    if kind == "digits":
        figures["accuracy"] = Figure(unit="", better="more", bound=0.85)
    run = partial(_trained, library, model, steps)
    return Case(
        name=name,
        figures=figures,
        ours={side: partial(run, *one) for side, one in ours.items()},
        peers={side: partial(run, *one) for side, one in peers.items()},
        turns=arguments.turns if kind in MODELS else arguments.other_turns,
        facts={
            "ranks": RANKS,
            "scaling": "weak",
            "threads of a rank": THREADS,
            "batch": f"{BATCH} of a rank, {BATCH * RANKS} of all",
            "steps": steps,
            "inputs": {side: feed.split()[0] for side, (*_, feed) in {**ours, **peers}.items()},
            "time": f"loop: of all ranks after {WARM_UP} steps; command: with launch and imports",
        },
    )


def _sides(kind: str, library: str, folder: Path) -> tuple[dict[str, Side], dict[str, Side]]:
    """The sides of a case: this package's, and its peer's."""
    there = PEERS[library]
    way = {"torch": "ddp"}.get(library, library)
    if kind not in ("table", "trainer"):
        feed = "digits" if kind == "digits" else "synthetic"
        return {HERE: (HERE, way, feed)}, {there: (there, way, feed)}
    url = _written(folder / "table")
    ours = (HERE, way, f"loader {url}")
    if kind == "trainer":
        return {"Trainer": (HERE, "trainer", f"loader {url}")}, {"by hand": ours}
    return {"converter": ours}, {"DataLoader": (HERE, way, f"dataloader {url}")}


def _trained(
    library: str, model: str, steps: int, launcher: str, way: str, feed: str
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="train-benchmark-") as folder:
        arguments = [way, model, feed, str(steps), folder]
        started, seconds = run_script(launcher, library, "training_script.py", arguments)
        ranks = [json.loads(Path(folder, f"rank-{rank}").read_text()) for rank in range(RANKS)]
    return {
        "loop": RANKS * ranks[0]["clock"],
        "by processor": statistics.harmonic_mean([one["processor"] for one in ranks]),
        "command": seconds,
        "to the first step": ranks[0]["first"] - started,
        "accuracy": ranks[0].get("accuracy", 0.0),
    }


def _written(folder: Path) -> str:
    """The URL of a table whose label is the first ten features' largest."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.ranks.training_script import WIDTH

    folder.mkdir(exist_ok=True)
    features = np.random.default_rng(0).standard_normal((ROWS, WIDTH), dtype=np.float32)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), WIDTH)
    table = pa.table({"features": rows, "label": features[:, :10].argmax(axis=1)})
    pq.write_table(table, folder / "part-0.parquet", row_group_size=4096)
    return f"file://{folder}"
