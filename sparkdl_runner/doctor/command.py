"""``sparkdl-runner doctor``: its arguments and its exit code."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from sparkdl_runner.doctor.examination import examine
from sparkdl_runner.doctor.question import Question
from sparkdl_runner.launch.backends import BACKENDS

DESCRIPTION = """\
Looks whether ranks can run here, on the driver and on every executor: Java, Spark, Arrow,
petastorm, torch, Horovod, TensorFlow, GPUs, network, clocks, disks, slots and MLflow. Each finding
says what to do. Nothing is changed.
"""
EPILOG = """\
for example:
  sparkdl-runner doctor
  sparkdl-runner doctor --np 4 --backend torch --folder s3a://bucket/checkpoints

exit codes: 0 nothing is broken (there may be warnings), 1 something is, 2 bad arguments
"""


def add_parser(subparsers: Any) -> None:
    """Registers ``doctor`` among the commands of a command line."""
    parser = subparsers.add_parser("doctor", help="what would keep ranks from running here")
    add_arguments(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments, and ``run`` as what takes them and returns the exit code."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        *("--num-proc", "--np"),
        type=_count,
        default=2,
        metavar="N",
        help="how many ranks are wanted (default: 2)",
    )
    parser.add_argument(
        "--backend",
        choices=[*BACKENDS, "all"],
        default="all",
        help="what ranks will use; 'all' only warns where Horovod is not installed, and takes "
        "TensorFlow as it is (default: all)",
    )
    parser.add_argument("--gpu", action="store_true", help="ranks need GPUs")
    parser.add_argument(
        "--master", help="Spark's master (default: what Spark is configured to, else local[N])"
    )
    parser.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark's, as in spark-submit; may be repeated",
    )
    parser.add_argument(
        "--archives",
        type=lambda text: ("spark.archives", text),
        action="append",
        dest="conf",
        metavar="FILE#FOLDER",
        help="sent to executors and unpacked there, as in spark-submit: such as the Python "
        "environment of which PYSPARK_PYTHON is a file",
    )
    parser.add_argument(
        "--tracking-uri", help="MLflow's (default: MLFLOW_TRACKING_URI)", metavar="URI"
    )
    parser.add_argument(
        "--folder",
        type=_folder,
        action="append",
        default=[],
        metavar="URL",
        help="a folder that all hosts must be able to write, such as that of checkpoints or of "
        "conversions; may be repeated",
    )
    parser.add_argument(
        "--preflight", action="store_true", help="have ranks measure how fast the hosts are, too"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Looks at everything and prints the report."""
    question = Question(
        num_proc=arguments.num_proc,
        master=arguments.master,
        backends=tuple(BACKENDS) if arguments.backend == "all" else (arguments.backend,),
        gpus=arguments.gpu,
        tracking_uri=arguments.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"),
        folders=tuple(arguments.folder),
        preflight=arguments.preflight,
        conf=dict(arguments.conf),
    )
    report = examine(question)
    report.print_to(sys.stdout)
    return {"exit_code": report.exit_code, **report.to_json()}


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, which is 1 or more")
    return int(text)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _folder(text: str) -> str:
    if not text.startswith("/") and ":" not in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an absolute path nor a URL such as s3a://bucket/folder"
        )
    return text
