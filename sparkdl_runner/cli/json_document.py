"""``--json``, of every command: what it did, or why it failed, as one JSON document."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl_runner.base.standard_output import for_programs
from sparkdl_runner.base.version import __version__


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json`` to each command of a command line."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for command in [command for action in below for command in action.choices.values()]:
        add_flag(command)
    if not below:
        text = "print the result as one JSON document; what else is printed goes to stderr"
        parser.add_argument("--json", action="store_true", help=text)


def is_wanted(argv: Sequence[str]) -> bool:
    """Whether the arguments ask for it. What follows ``--`` is a script's own."""
    return "--json" in (argv[: argv.index("--")] if "--" in argv else argv)


def failed(why: BaseException, exit_code: int) -> dict[str, Any]:
    """The result of a command that raised, or was asked to end."""
    where = {name: getattr(why, name, None) for name in ("rank", "host")}
    error = {"type": type(why).__name__, "message": str(why), **where}
    return {"exit_code": exit_code, "error": error}


def write(command: str, result: Mapping[str, Any]) -> None:
    """Prints the document, in one line: events may stand before it."""
    begin = {"format": 1, "version": __version__, "command": command, "exit_code": 0}
    print(json.dumps(_plain({**begin, **result})), file=for_programs(), flush=True)


def _plain(value: Any) -> Any:
    """The value as JSON has it: a number that is not finite is a text, as in events."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, type(None))) else str(value)
