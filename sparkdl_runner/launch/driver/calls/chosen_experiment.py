"""The MLflow experiment that a function or a script chooses itself, as far as its source tells.

A run cannot be moved to another experiment. So the driver opens the training's run where rank 0
will look for it: else the function would make a second run there, and leave this one empty.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparkdl_runner.base.parsing import undisturbed
from sparkdl_runner.launch.driver.calls.ingredients import functions_of
from sparkdl_runner.launch.script.script import Script


def chosen_experiment(main: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    """The name that ``mlflow.set_experiment`` is given.

    Args:
        main: The function, or the script.
        arguments: Of the call, by name. The experiment's name may be one of them.

    Returns:
        The name; None if the source is not there, no name can be told from it, or there are
        several.
    """
    names = set()
    with suppress(OSError, TypeError, SyntaxError, ValueError):
        for tree, known in _sources(main, arguments):
            values = {**known, **_assigned(tree)}
            for call in _calls(tree):
                if _name(call.func) == "set_tracking_uri":
                    return None  # Its experiment is in another store, perhaps.
                if _name(call.func) == "set_experiment":
                    names.add(_text(call, values))
    return names.pop() if len(names) == 1 else None


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
        given = {one.name: one.default for one in parameters} | ({} if number else dict(arguments))
        known = {**enclosing.globals, **enclosing.nonlocals, **given}
        yield _parsed(textwrap.dedent(inspect.getsource(function))), known


def _parsed(source: str | bytes) -> ast.AST:
    return undisturbed(lambda: ast.parse(source))


def _assigned(tree: ast.AST) -> dict[str, Any]:
    """The variables that are set: to a text, or to something that only the rank will know."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [one.id for one in node.targets if isinstance(one, ast.Name)]
            found |= dict.fromkeys(names, node.value.value)
    return found


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


def _text(call: ast.Call, values: Mapping[str, Any]) -> str | None:
    by_name = [one.value for one in call.keywords if one.arg == "experiment_name"]
    given = [*call.args, *by_name]
    if not given:
        return None
    value = given[0]
    found = value.value if isinstance(value, ast.Constant) else values.get(getattr(value, "id", ""))
    return found if isinstance(found, str) and found.strip() else None
