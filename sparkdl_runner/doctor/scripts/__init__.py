"""Scripts whose text travels to hosts where nothing of this package may be.

Each needs the standard library alone, and none imports another module of this package.
"""

from __future__ import annotations

from importlib import resources


def text_of(name: str) -> str:
    """Returns a script's source."""
    return resources.files(__name__).joinpath(f"{name}.py").read_text()
