"""A spare worker is taken as long as what it has imported is what an import would find."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from sparkdl_runner.worker.spare import _imported


def test_a_file_that_was_written_again_or_found_elsewhere_changes_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "sparkdl_spare_example"
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    file = tmp_path / "second" / f"{name}.py"
    file.write_text("number = 1\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    importlib.import_module(name)
    try:
        before = _imported()
        assert before == _imported()
        files, origins = before
        assert origins[name] == str(file)
        assert str(file) in files
        (tmp_path / "first" / f"{name}.py").write_text("number = 2\n")
        assert _imported()[1][name] == str(tmp_path / "first" / f"{name}.py")
        (tmp_path / "first" / f"{name}.py").unlink()
        assert _imported() == before
        file.write_text("number = 10\n")
        assert _imported() != before
    finally:
        del sys.modules[name]
