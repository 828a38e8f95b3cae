"""``run module:function``: the shortest way from a function to its ranks."""

from __future__ import annotations

import argparse
from typing import Any

from sparkdl_runner.jobs import train
from sparkdl_runner.jobs.settings import load
from sparkdl_runner.jobs.settings.flags import as_pairs
from sparkdl_runner.jobs.training.settings import TrainSettings


def add_parser(subparsers: Any) -> None:
    """Adds ``run``."""
    summary = "Run a function as allreduce ranks, and show what rank 0 returned."
    parser = subparsers.add_parser(
        "run",
        help=summary,
        description=summary,
        epilog="To give it data, checkpoints or settings of MLflow, let train run it:\n"
        "  sparkdl-runner train --function module:function --num-proc 2\n"
        "train --help has the rest.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("function", help="package.module:function or path/to/file.py:function")
    parser.add_argument(
        "--np",
        type=int,
        required=True,
        metavar="N",
        help="how many ranks; 0: one on each slot; negative: processes on this host, without Spark",
    )
    parser.add_argument(
        "--backend",
        choices=("horovod", "torch"),
        default="torch",
        help="what the function calls: torch.distributed.init_process_group() (torch, the "
        "default), or hvd.init() (horovod)",
    )
    as_pairs(parser, "--arguments", "the function's arguments")
    parser.pairs_flag = "--arguments"
    as_pairs(parser, "--runner", "settings of RunConfig, such as max_restarts=2")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    given = {
        "function": arguments.function,
        "num_proc": arguments.np,
        "backend": arguments.backend,
        "hyperparameters": dict(arguments.arguments),
        "runner": dict(arguments.runner),
    }
    train.run(load(TrainSettings, None, given))
