"""``build-horovod``: runs the build script that comes with this package."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "horovod" / "build.sh"


def add_parser(subparsers: Any) -> None:
    """Adds ``build-horovod``."""
    summary = "Build Horovod for the torch that is installed, once, keep the wheel, and install it."
    parser = subparsers.add_parser(
        "build-horovod",
        help=summary,
        description=summary,
        epilog="for example:\n"
        "  sparkdl-runner build-horovod\n"
        "  sparkdl-runner build-horovod --gpu --wheelhouse /shared/wheels\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpu", action="store_true", help="collective operations by NCCL")
    parser.add_argument("--wheelhouse", metavar="DIR", help="where wheels are kept")
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument("--sha256", metavar="HASH", help="take the wheel with this SHA-256 alone")
    trust.add_argument(
        "--trust-wheelhouse", action="store_true", help="also where others may write to it"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--wheel-only", action="store_true", help="print the wheel's path instead")
    what.add_argument(
        "--check", action="store_true", help="only say whether it is there or could be built"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    command = ["bash", str(SCRIPT), "--python", sys.executable]
    flags = ("gpu", "trust_wheelhouse", "wheel_only", "check")
    wanted = [name for name in flags if getattr(arguments, name)]
    command += [f"--{name.replace('_', '-')}" for name in wanted]
    for name in ("wheelhouse", "sha256"):
        if getattr(arguments, name) is not None:
            command += [f"--{name}", getattr(arguments, name)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    return {"exit_code": done.returncode, "wheel": done.stdout.strip() or None}
