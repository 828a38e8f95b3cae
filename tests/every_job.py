"""The jobs of the command line: a new one is among them, and is judged by the same tests."""

from __future__ import annotations

import importlib

from sparkdl_runner import cli

_MODULES = [
    importlib.import_module(f"sparkdl_runner.{module}") for module, _ in cli._COMMANDS.values()
]
EVERY_JOB = [module.JOB for module in _MODULES if hasattr(module, "JOB")]
