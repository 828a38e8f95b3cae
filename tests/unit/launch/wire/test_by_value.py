from __future__ import annotations

import linecache
import pickle
import traceback
import types
import warnings

import cloudpickle
import pytest

from sparkdl_runner.launch.wire import by_value

CELL_NAME = "/tmp/ipykernel_1/2.py"
CELL = """\
import warnings


def loss(x):
    def inner():
        warnings.warn("small")
        raise ValueError(x)

    return inner()


class Net:
    def forward(self):
        return loss(3)
"""


def as_newer_cloudpickle(code):
    return cloudpickle.Pickler.dispatch_table[types.CodeType](
        code.replace(co_filename="<dynamic-code>")
    )


@pytest.fixture(params=["installed", "newer"])
def arrived(request, monkeypatch):
    """A class of a notebook's cell, where it has arrived by pickle in another process."""
    monkeypatch.setattr(linecache, "cache", {})
    if request.param == "newer":
        monkeypatch.setattr(by_value, "_reduce_code", as_newer_cloudpickle)
    linecache.cache[CELL_NAME] = (len(CELL), None, CELL.splitlines(keepends=True), CELL_NAME)
    exec(compile(CELL, CELL_NAME, "exec"), cell := {"__name__": "__main__"})
    packed = by_value.dumps(cell["Net"])
    linecache.cache.clear()
    cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    return pickle.loads(packed)


def test_a_traceback_shows_file_line_and_source_of_what_travelled(arrived):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="3") as caught:
            arrived().forward()
    told = "".join(traceback.format_exception(caught.value))
    assert f'File "{CELL_NAME}", line 14, in forward\n    return loss(3)' in told
    assert f'File "{CELL_NAME}", line 7, in inner\n    raise ValueError(x)' in told
    assert (seen[0].filename, seen[0].lineno) == (CELL_NAME, 6)
    assert 'warnings.warn("small")' in warnings.formatwarning(
        seen[0].message, seen[0].category, seen[0].filename, seen[0].lineno
    )


def test_only_the_lines_of_the_code_travel(arrived):
    arrived()
    assert "import warnings\n" not in linecache.getlines(CELL_NAME)
    assert linecache.getline(CELL_NAME, 14) == "        return loss(3)\n"


def test_lines_of_several_functions_of_a_file_are_kept_side_by_side(monkeypatch):
    monkeypatch.setattr(linecache, "cache", {})
    by_value.keep_lines("cell", 5, "five\nsix\n")
    by_value.keep_lines("cell", 2, "two\n")
    by_value.keep_lines("cell", 8, "eight")
    expected = ["\n", "two\n", "\n", "\n", "five\n", "six\n", "\n", "eight"]
    assert linecache.getlines("cell") == expected


def test_what_was_sent_counts_where_a_file_of_that_name_is_another(monkeypatch, tmp_path):
    monkeypatch.setattr(linecache, "cache", {})
    file = tmp_path / "train.py"
    file.write_text("one\ntwo\nthree\n")
    by_value.keep_lines(str(file), 2, "TWO\n")
    linecache.checkcache()
    assert linecache.getlines(str(file)) == ["one\n", "TWO\n", "three\n"]


def test_code_without_source_travels_with_its_name():
    exec(compile("def f(): return 3", "<made>", "exec"), made := {"__name__": "__main__"})
    arrived = pickle.loads(by_value.dumps(made["f"]))
    assert (arrived(), arrived.__code__.co_filename) == (3, "<made>")


def test_very_long_code_goes_without_its_source(monkeypatch):
    monkeypatch.setattr(by_value, "MAX_SOURCE_CHARACTERS", 10)
    assert by_value.source_of(as_newer_cloudpickle.__code__) == ""
