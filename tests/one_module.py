"""Replaces functions of a library for one module: other code, and other threads, keep theirs."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def replace_in(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, library: str, **functions: Any
) -> None:
    """Gives ``module`` a copy of ``library``, such as ``"time"``, with these functions in it."""
    real = getattr(module, library)
    monkeypatch.setattr(module, library, SimpleNamespace(**{**vars(real), **functions}))
