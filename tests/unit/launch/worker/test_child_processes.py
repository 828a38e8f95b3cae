from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from enum import Enum
from multiprocessing.reduction import ForkingPickler

import pytest

from sparkdl_runner.launch.worker import child_processes

OF_A_NOTEBOOK = """
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum

Point = namedtuple("Point", "x y")

class Color(Enum):
    RED = 1

@dataclass
class Row:
    n: int
    color: Color = Color.RED

class Bad(ValueError):
    pass

rows = []

def keep(n):
    rows.append(Row(n))
    return rows[-1]

def kept():
    return len(rows)

def adder(n):
    return lambda x: x + n
"""
CHILD = """
import pickle, sys
from multiprocessing.reduction import ForkingPickler
function, value = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(bytes(ForkingPickler.dumps(function(value))))
"""


@pytest.fixture
def notebook(monkeypatch):
    """The names of a notebook's cell in a rank, where ``__main__`` has none of them."""
    before = dict(vars(ForkingPickler))
    monkeypatch.setattr(ForkingPickler, "_extra_reducers", dict(ForkingPickler._extra_reducers))
    exec(OF_A_NOTEBOOK, names := {"__name__": "__main__"})
    child_processes.send_by_value()
    yield names
    for name in vars(ForkingPickler).keys() - before.keys():
        delattr(ForkingPickler, name)


def sent(value):
    return pickle.loads(ForkingPickler.dumps(value))


def test_what_a_notebook_defines_goes_to_a_child_by_value(notebook):
    row = sent(notebook["Row"](3))
    assert (type(row), row.n) == (notebook["Row"], 3)
    assert row.color is notebook["Color"].RED
    assert sent(notebook["Point"](1, 2)) == (1, 2)
    assert sent(notebook["adder"](3))(4) == 7
    assert sent(lambda x: -x)(4) == -4
    assert type(sent(notebook["Bad"]("no"))) is notebook["Bad"]


def test_functions_that_go_together_share_what_they_share(notebook):
    keep, kept = sent((notebook["keep"], notebook["kept"]))
    keep(3)
    assert kept() == 1
    assert notebook["kept"]() == 0


def test_what_pickle_takes_goes_as_before(notebook):
    for value in (subprocess.run, Enum, {"a": [1, (2.5, None)]}, len, type(None)):
        assert sent(value) == value
    assert b"cloudpickle" not in bytes(ForkingPickler.dumps((subprocess.run, Enum)))


def test_what_cannot_travel_is_refused_as_before(notebook):
    with pytest.raises(TypeError, match="cannot pickle '_thread"):
        sent(threading.Lock())


def test_teaching_twice_changes_nothing(notebook):
    before = dict(vars(ForkingPickler))
    child_processes.send_by_value()
    assert dict(vars(ForkingPickler)) == before


def test_a_child_that_starts_anew_sends_its_values_back_by_value(notebook):
    task = bytes(ForkingPickler.dumps((notebook["keep"], 5)))
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=task, capture_output=True, check=True
    )
    row = pickle.loads(done.stdout)
    assert (type(row), row.n) == (notebook["Row"], 5)
