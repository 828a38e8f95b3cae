"""The MLflow store and experiment that a function or a script chooses, as its source tells them.

A run cannot be moved to another place. So the driver opens the training's run where rank 0 will
look for it: else the function would make a second run there, and leave this one empty. In another
store, each rank would make one.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl_runner.base.parsing import undisturbed
from sparkdl_runner.launch.driver.calls.ingredients import functions_of
from sparkdl_runner.launch.script.script import Script


@dataclass(frozen=True, kw_only=True)
class ChosenPlace:
    """Where a function has its MLflow runs. None: nothing is chosen, or not known beforehand."""

    tracking_uri: str | None = None
    experiment: str | None = None


_CHOICES = {"set_tracking_uri": "uri", "set_experiment": "experiment_name"}
_CREDENTIALS = ("MLFLOW_", "DATABRICKS_")


def chosen_place(main: Callable[..., Any], arguments: Mapping[str, Any]) -> ChosenPlace:
    """What ``mlflow.set_tracking_uri`` and ``mlflow.set_experiment`` are given.

    Args:
        main: The function, or the script.
        arguments: Of the call, by name. What is chosen may be one of them.

    Returns:
        Both. One is None if the source is not there, tells no text, or several. Without the store
        the experiment is None, too.
    """
    given: dict[str, set[str | None]] = {name: set() for name in _CHOICES}
    has_credentials = False
    with suppress(OSError, TypeError, SyntaxError, ValueError):
        for tree, known in _sources(main, arguments):
            values = {**known, **_assigned(tree)}
            for call in _calls(tree):
                if (name := _name(call.func)) in _CHOICES:
                    given[name].add(_text(call, _CHOICES[name], values))
            has_credentials = has_credentials or _sets_credentials(tree)
    uris, names = given.values()
    # With credentials that only the function has, the driver may not reach the store.
    if uris and (has_credentials or not _is_one(uris)):
        return ChosenPlace()
    return ChosenPlace(
        tracking_uri=uris.pop() if uris else None,
        experiment=names.pop() if _is_one(names) else None,
    )


def _is_one(texts: set[str | None]) -> bool:
    return len(texts) == 1 and None not in texts


def _sources(
    main: Callable[..., Any], arguments: Mapping[str, Any]
) -> Iterator[tuple[ast.AST, Mapping[str, Any]]]:
    """The source of all functions of the call, each with the values of its names."""
    if isinstance(main, Script):
        yield _parsed(Path(main.file).read_bytes()), {}
        return
    for number, function in enumerate(functions_of(main)):
        enclosing = inspect.getclosurevars(function)
        parameters = inspect.signature(function).parameters.values()
        given = {parameter.name: parameter.default for parameter in parameters} | (
            {} if number else dict(arguments)
        )
        known = {**enclosing.globals, **enclosing.nonlocals, **given}
        yield _parsed(textwrap.dedent(inspect.getsource(function))), known


def _parsed(source: str | bytes) -> ast.AST:
    return undisturbed(lambda: ast.parse(source))


def _assigned(tree: ast.AST) -> dict[str, Any]:
    """The variables that are set: to a text, or to something that only the rank will know."""
    variables: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            variables[node.id] = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            variables |= dict.fromkeys(names, node.value.value)
    return variables


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls that happen on rank 0 for certain: not those under another condition."""
    if isinstance(node, ast.If):
        test = ast.dump(node.test)
        if "rank" not in test and "__main__" not in test:
            return
    if isinstance(node, ast.Call):
        yield node
    for part in ast.iter_child_nodes(node):
        yield from _calls(part)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _sets_credentials(tree: ast.AST) -> bool:
    """Whether it changes variables of MLflow's or Databricks' in the environment."""
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
        and str(node.slice.value).startswith(_CREDENTIALS)
        for node in ast.walk(tree)
    )


def _text(call: ast.Call, argument: str, values: Mapping[str, Any]) -> str | None:
    by_name = [keyword.value for keyword in call.keywords if keyword.arg == argument]
    given = [*call.args, *by_name]
    if not given:
        return None
    value = given[0]
    text = value.value if isinstance(value, ast.Constant) else values.get(getattr(value, "id", ""))
    return text if isinstance(text, str) and text.strip() else None
