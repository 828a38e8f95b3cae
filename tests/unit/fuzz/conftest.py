"""How much memory the parsers may take."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest
from hostile_bytes import fuzz
from hypothesis import given, settings
from hypothesis import strategies as st

MOST_GROWTH_BYTES = 200 << 20
"""Of this process, over all examples of a parser."""


@pytest.fixture(autouse=True, scope="module")
def _libraries() -> None:
    """Loads torch and hypothesis's tables first: some 200 MB each, which no parser has taken."""
    import torch  # noqa: F401

    @settings(fuzz, max_examples=1)
    @given(st.text())
    def draw(_: str) -> None:
        pass

    draw()


@pytest.fixture(autouse=True)
def _grows_little() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MOST_GROWTH_BYTES
