"""No thread of the package keeps an interpreter that ends from ending."""

from __future__ import annotations

import ast
from pathlib import Path

import sparkdl_runner


def test_every_thread_is_a_daemon() -> None:
    found = 0
    for path in Path(sparkdl_runner.__file__).parent.rglob("*.py"):
        source = path.read_bytes()
        for node in ast.walk(ast.parse(source)) if b"Thread(" in source else ():
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("Thread"):
                continue
            found += 1
            given = {one.arg: ast.unparse(one.value) for one in node.keywords}
            assert given.get("daemon") == "True", f"{path}:{node.lineno}"
    assert found > 10
