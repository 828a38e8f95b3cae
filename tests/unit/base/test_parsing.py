"""Python's source is parsed although others parse meanwhile."""

from __future__ import annotations

import ast
import gc
import inspect
from typing import Any

import pytest

from sparkdl_runner.base.parsing import undisturbed

SOURCE = inspect.getsource(ast)


def parse_in_between(phase: str, about: dict[str, Any]) -> None:
    """Parses in the middle of another parse, from another depth of calls."""
    if phase == "start":
        ast.parse("1")


def test_another_parser_disturbs_none() -> None:
    tries = []

    def parse() -> ast.Module:
        tries.append("try")
        if len(tries) > 1:
            return ast.parse(SOURCE)
        before = gc.get_threshold()
        gc.callbacks.append(parse_in_between)
        gc.set_threshold(1)
        try:
            return ast.parse(SOURCE)
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(parse_in_between)

    assert isinstance(undisturbed(parse), ast.Module)


def test_what_is_no_python_is_said_at_once() -> None:
    tries = []

    def parse() -> ast.Module:
        tries.append("try")
        return ast.parse("def")

    with pytest.raises(SyntaxError):
        undisturbed(parse)
    assert tries == ["try"]
