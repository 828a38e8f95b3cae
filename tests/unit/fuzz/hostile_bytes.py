"""What hypothesis makes of good input, so that parsers see what nobody would send by mistake.

A longer run, of other examples each time: ``make fuzz EXAMPLES=100000``.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
"""Of each parser."""
MOST_SECONDS = 5.0
"""Of the processor's time, for one example."""
JSON_TOKENS = [b"[", b"{", b'{"a":', b'"', b"]", b"}", b",", b"NaN", b"1e999", b"\\ud800", b"\xff"]
DEEP = [b"[" * 5_000, b'{"a":' * 2_000]

fuzz = settings(
    max_examples=EXAMPLES,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def bounded(*errors: type[Exception]) -> Iterator[None]:
    """Lets the named errors pass, if they say something in few words, and nothing take long."""
    started, told = time.process_time(), ""
    try:
        yield
    except errors as error:
        told = str(error)
    assert len(told) < 5_000
    assert time.process_time() - started < MOST_SECONDS


ODD = [
    *[None, True, False, 0, -1, 1.5, math.nan, math.inf, 2**31, 2**63, -(2**70), 10**400],
    *["", "..", "../../x", "/etc/passwd", "a\0b", "é", "\ud800", "9" * 30, "x" * 5_000],
    *[[], {}, [[]], [None], [-1], ["a"], {"": None}, {"is": "dict"}],
]
"""Values that no field of ours expects."""

_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_JSON = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@st.composite
def changed_bytes(draw: Any, good: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Good input that was cut, doubled, flipped, or filled with noise, tokens and many tokens."""
    data = bytearray(draw(st.sampled_from(good) | st.binary(max_size=100)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.integers(0, 40)))
        change = draw(st.sampled_from(["cut", "end", "double", "flip", "noise", "token", "many"]))
        if change == "cut":
            del data[at:until]
        elif change == "end":
            del data[at:]
        elif change == "double":
            data[at:at] = data[at:until]
        elif change == "flip" and data:
            data[at % len(data)] ^= 1 << draw(st.integers(0, 7))
        elif change == "noise":
            data[at:until] = draw(st.binary(max_size=20))
        elif change == "token":
            data[at:until] = draw(st.sampled_from(tokens))
        elif change == "many":
            data[at:at] = draw(st.sampled_from(tokens)) * draw(st.integers(2, 2_000))
    return bytes(data)


@st.composite
def changed_json(draw: Any, good: Any, write: Callable[[Any], bytes]) -> bytes:
    """Good fields of which some have another value, are gone, or are there too much.

    Args:
        draw: Given by hypothesis.
        good: What ``json.loads`` returns.
        write: Makes bytes of it again, perhaps with a right checksum.
    """
    whole = [copy.deepcopy(good)]
    for _ in range(draw(st.integers(1, 3))):
        around, place = draw(st.sampled_from(list(_places(whole, 0))))
        value = copy.deepcopy(draw(st.sampled_from(ODD) | _JSON))
        change = draw(st.sampled_from(["set", "set", "set", "delete", "add"]))
        if change == "delete" and around is not whole:
            del around[place]
        elif change == "add" and isinstance(around[place], list):
            around[place].append(value)
        elif change == "add" and isinstance(around[place], dict):
            around[place][draw(st.text(max_size=5))] = value
        else:
            around[place] = value
    return write(whole[0])


def plain(value: Any) -> bytes:
    """JSON as it is."""
    return json.dumps(value).encode()


def _places(around: Any, place: Any) -> Any:
    """Every value in a nested one, as what it is in and where."""
    yield around, place
    inside = around[place]
    if isinstance(inside, (dict, list)):
        for one in inside if isinstance(inside, dict) else range(len(inside)):
            yield from _places(inside, one)
