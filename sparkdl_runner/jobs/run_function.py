"""``run``: the shortest way from a function, or a script, to its ranks."""

from __future__ import annotations

import argparse
from typing import Any

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs import train
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.parsing.command import printing_beside
from sparkdl_runner.jobs.parsing.flags import as_pairs, flag
from sparkdl_runner.jobs.training.settings import EVENTS, RunConfigSettings, TrainSettings
from sparkdl_runner.launch.backends import BACKENDS


def add_parser(subparsers: Any) -> None:
    """Adds ``run``."""
    summary = "Run a script or a function as allreduce ranks."
    parser = subparsers.add_parser(
        "run",
        help=summary,
        description=summary,
        epilog="What torchrun does with a script, and what rank 0 of a function returns:\n"
        "  sparkdl-runner run train.py --np 4 -- --epochs 3\n"
        "  sparkdl-runner run -m package.train --np 4 -- --epochs 3\n"
        "  sparkdl-runner run train.py:main --np 4 --hyperparameters epochs=3\n"
        "To give a function data, checkpoints or settings of MLflow, let train run it:\n"
        "  sparkdl-runner train --function module:function --np 2\n"
        "train --help has the rest.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        metavar="script|function",
        help="path/to/script.py, or package.module:function, or path/to/file.py:function. The "
        "arguments of a script follow after --",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="run a module as a script, as python -m does"
    )
    parser.add_argument(
        "--files",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATTERN",
        help="what of the script's folder travels to ranks on Spark besides its Python files, such "
        "as '*.yaml' or data/",
    )
    parser.add_argument("--events", metavar="FILE|-", help=EVENTS)
    parser.add_argument(
        *("--num-proc", "--np"),
        type=int,
        required=True,
        metavar="N",
        help="how many ranks; 0: one on each slot; negative: processes on this host, without Spark",
    )
    parser.add_argument(
        "--backend",
        choices=tuple(BACKENDS),
        default="torch",
        help="what it calls: torch.distributed.init_process_group() (torch, the "
        "default), hvd.init() (horovod), or MultiWorkerMirroredStrategy() (tensorflow)",
    )
    as_pairs(parser, "--hyperparameters", "the function's arguments")
    parser.pairs_flag = "--hyperparameters"
    parser.flag_of_key = dict.fromkeys(RunConfigSettings.model_fields, "--run-config")
    parser.elsewhere = {
        flag(name): "train" for name in ("data", "cache_url", "checkpoint_url", "tracking", "name")
    }
    parser.earlier_flags = {"--arguments": "--hyperparameters", "--runner": "--run-config"}
    parser.takes_more = True
    as_pairs(parser, "--run-config", "settings of RunConfig, such as max_restarts=2")
    parser.set_defaults(run=_run, takes_more=True)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    what, more = arguments.what, arguments.more
    kind = "module" if arguments.module else "script" if what.endswith(".py") else "function"
    if kind == "function" and ":" not in what:
        raise ConfigError(
            f"{what!r} is neither a script (path/to/script.py) nor a function (module:function, "
            f"file.py:function); for a module write -m {what}."
        )
    if kind == "function" and (more or arguments.files):
        raise ConfigError(
            f"{what} is a function, whose arguments are given by --hyperparameters NAME=VALUE; "
            f"{'--files' if arguments.files else 'what follows --'} is for a script."
        )
    given = {
        kind: what,
        "args": more,
        "files": arguments.files,
        "num_proc": arguments.num_proc,
        "backend": arguments.backend,
        "hyperparameters": dict(arguments.hyperparameters),
        "run_config": dict(arguments.run_config),
        "events": arguments.events,
    }
    with printing_beside(arguments.events):
        return train.summarized(*train.train(load(TrainSettings, None, given)))
