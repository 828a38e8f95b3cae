"""The options of a part, each with what it is by default and in a quick run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One of them.

    Attributes:
        name: Without its dashes.
        default: A list takes several values, False is a switch.
        quick: With ``--quick``, if that is another.
        help: For a person.
        choices: All values that there are.
        type: Reads a value; by default as one of the default's type, and numbers of at least 1.
    """

    name: str
    default: Any
    quick: Any = None
    help: str = ""
    choices: Sequence[Any] | None = None
    type: Callable[[str], Any] | None = None


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Adds options, and ``--quick``. Those that nobody gave are not in what the parser returns."""
    parser.add_argument("--quick", action="store_true", help="few turns of small cases")
    for one in options:
        flag = f"--{one.name}"
        if one.default is False:
            parser.add_argument(flag, action="store_true", help=one.help)
            continue
        several = isinstance(one.default, (list, tuple))
        value = next(iter(one.default), None) if several else one.default
        read = positive if isinstance(value, int) else type(value)
        parser.add_argument(
            flag,
            type=one.type or (str if value is None else read),
            choices=one.choices,
            metavar=one.name.rpartition("-")[2].upper(),
            nargs="+" if several else None,
            default=argparse.SUPPRESS,
            help=_told(one),
        )


def _told(one: Option) -> str:
    values = one.default if isinstance(one.default, (list, tuple)) else [one.default]
    default = "all" if list(values) == list(one.choices or ()) else ", ".join(map(str, values))
    choices = f"of {'; '.join(one.choices)}" if one.choices else ""
    default = "" if one.default in (None, ()) else f"(default: {default})"
    return " ".join(filter(None, [one.help, choices, default]))


def complete(arguments: argparse.Namespace, options: Iterable[Option]) -> None:
    """Gives each option that nobody gave its value."""
    for one in options:
        default = one.quick if arguments.quick and one.quick is not None else one.default
        name = one.name.replace("-", "_")
        setattr(arguments, name, getattr(arguments, name, default))


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
