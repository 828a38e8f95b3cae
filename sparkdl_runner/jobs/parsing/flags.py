"""The command line of a job: one flag for each of its settings."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from sparkdl_runner.cli.command_line import Parser
from sparkdl_runner.jobs.parsing import Settings, options
from sparkdl_runner.jobs.parsing.yaml_file import parse_value


def add_flags(parser: Parser, kind: type[Settings]) -> None:
    """Adds ``--config`` and a flag for each setting; none has a default of its own.

    Args:
        parser: Where to add them.
        kind: The settings.
    """
    parser.add_argument("--config", metavar="FILE", help="YAML with these settings; flags win")
    parser.earlier_flags = {flag(name): flag(today) for name, today in kind.earlier_names.items()}
    parser.flag_of_key = {key: flag(name) for key, name in kind.parents().items()}
    titles = {name: title for title, names in kind.groups.items() for name in names}
    groups = {title: parser.add_argument_group(title) for title in kind.groups}
    for name, field in kind.model_fields.items():
        group = groups[titles[name]] if name in titles else parser
        text = (field.description or "").replace("%", "%%")
        if _is_mapping(field):
            as_pairs(group, flag(name), text, default=argparse.SUPPRESS)
            if name == kind.arguments_of_function:
                parser.pairs_flag = flag(name)
        else:
            group.add_argument(
                *([flag(name), "--np"] if name == "num_proc" else [flag(name)]),
                dest=name,
                type=str if _is_text(field) else parse_value,
                default=argparse.SUPPRESS,
                metavar=_metavar(field),
                help=text + _default(field),
            )


def flag(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


def as_pairs(parser: argparse._ActionsContainer, name: str, text: str, default: Any = ()) -> None:
    """Adds a flag whose values are ``key=value``, each as YAML would read it."""
    parser.add_argument(
        name,
        nargs="+",
        action="extend",
        type=_pair,
        default=default if default is argparse.SUPPRESS else list(default),
        metavar="KEY=VALUE",
        help=text,
    )


def given(arguments: argparse.Namespace, kind: type[Settings]) -> dict[str, Any]:
    """The settings that flags have given, by key."""
    values = {}
    for name in kind.model_fields:
        if hasattr(arguments, name):
            value = getattr(arguments, name)
            values[name] = dict(value) if _is_mapping(kind.model_fields[name]) else value
    return values


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, parse_value(value)


def _is_mapping(field: pydantic.fields.FieldInfo) -> bool:
    """Whether its value is a mapping, and not a text, a number or a list as well."""
    kinds = options(field)
    return any(
        typing.get_origin(kind) in (dict, Mapping)
        or (isinstance(kind, type) and issubclass(kind, Settings) and not kind.has_short_form)
        for kind in kinds
    ) and not any(
        kind in (str, int) or typing.get_origin(kind) in (list, Sequence) for kind in kinds
    )


def _is_text(field: pydantic.fields.FieldInfo) -> bool:
    return all(kind is str or typing.get_origin(kind) is typing.Literal for kind in options(field))


def _metavar(field: pydantic.fields.FieldInfo) -> str:
    (first, *_) = options(field)
    if typing.get_origin(first) is typing.Literal:
        return "|".join(str(choice) for choice in typing.get_args(first))
    return {int: "N", float: "X", bool: "true|false", str: "TEXT"}.get(first, "VALUE")


def _default(field: pydantic.fields.FieldInfo) -> str:
    default = field.default
    return f" (default: {default})" if isinstance(default, (str, int)) and default != "" else ""
