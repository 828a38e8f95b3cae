"""``preflight``: measures the hosts of ranks, and names those that are slow or odd."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from typing import Any

from sparkdl_runner.jobs.spark.session import spark_session
from sparkdl_runner.launch.backends import BACKENDS
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.runner import DistributedRunner


def add_parser(subparsers: Any) -> None:
    """Adds ``preflight``."""
    summary = "Measure the hosts of ranks before a training; exit code 1 if one is slow or faulty."
    parser = subparsers.add_parser(
        "preflight",
        help=summary,
        description=summary,
        epilog="for example:\n  sparkdl-runner preflight --master yarn --np 8 --full",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        *("--num-proc", "--np"),
        type=int,
        default=0,
        metavar="N",
        help="how many ranks; 0, the default: one on each slot; negative: on this host, no Spark",
    )
    parser.add_argument(
        "--backend", choices=tuple(BACKENDS), default="torch", help="what joins them"
    )
    parser.add_argument("--full", action="store_true", help="measure for 20 seconds, not for 2")
    parser.add_argument("--master", help="Spark's master, such as spark://HOST:7077")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    num_proc = arguments.num_proc
    if arguments.master:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master {arguments.master} pyspark-shell"
    config = RunConfig(preflight="full" if arguments.full else "quick", tracking=False)
    with nullcontext() if num_proc < 0 else spark_session("preflight", slots=num_proc):
        runner = DistributedRunner(num_proc=num_proc, backend=arguments.backend, run_config=config)
        report = runner.preflight()
    print("\n".join(report["lines"]), flush=True)
    return {"exit_code": int(any(is_bad for _, _, is_bad in report["findings"])), **report}
