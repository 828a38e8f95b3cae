"""A conversion that overwrites another may be killed anywhere: one of the two is whole."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from parquet_sets import LOCAL
from pyarrow import fs
from test_replacing import IN_PLACE, assert_one_conversion, convert, folder, ids

from sparkdl_runner.data import DatasetError
from sparkdl_runner.data.convert import replacing
from sparkdl_runner.data.dataset import held_folder
from sparkdl_runner.data.dataset.leftovers import Owner

THIS_PROCESS = Owner.this_process
__all__ = ["folder"]


class Kills:
    """Keeps what the disk would hold had the process been killed, at every line that is run.

    Between two lines that change nothing on the disk, a kill leaves the same: of each such row
    of lines one copy is kept.
    """

    def __init__(self, folder: Path, copies: Path) -> None:
        self._folder = folder
        self._copies = copies
        self._last: dict[str, bytes | None] | None = None
        self.found: list[Path] = []

    def look(self) -> None:
        now = {
            str(path): path.read_bytes() if path.is_file() else None
            for path in [self._folder, *self._folder.rglob("*")]
            if path.exists()
        }
        if now != self._last:
            self._last = now
            self.found.append(self._copies / str(len(self.found)))
            copy(self._folder, self.found[-1])

    def trace(self, frame: FrameType, event: str, argument: object) -> object:
        code = frame.f_code
        is_in_a_loop_over_values = code.co_name.startswith("<")
        if (code.co_filename != replacing.__file__ or is_in_a_loop_over_values) and (
            code.co_filename,
            code.co_name,
        ) != (held_folder.__file__, "write"):
            return None
        if event == "line":
            self.look()
        return self.trace


def copy(folder: Path, to: Path) -> None:
    """Makes ``to`` what ``folder`` is, also where that is nothing."""
    if to.exists():
        shutil.rmtree(to)
    if folder.exists():
        shutil.copytree(folder, to)


def ended_process(directory: str, application_id: str) -> Owner:
    """As ``Owner.this_process``, but for one that is not there any more."""
    return Owner(**{**vars(THIS_PROCESS(directory, application_id)), "started_ticks": 1})


class ThisThread:
    """In the place of a pool of one thread: nothing changes on the disk while it is looked at."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> ThisThread:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., object], *arguments: object) -> Future[object]:
        done: Future[object] = Future()
        done.set_result(call(*arguments))
        return done


@contextmanager
def traced(trace: Callable[[FrameType, str, object], object]) -> Iterator[None]:
    """Has each line of this thread pass by ``trace``."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def held(folder: Path) -> str:
    """How many rows a folder's conversion has, or why there is none."""
    try:
        rows = ids(folder)
    except DatasetError as error:
        return "torn" if "cut short" in str(error) else "none"
    assert rows == list(range(len(rows)))
    return str(len(rows))


@pytest.mark.one_lane
@pytest.mark.parametrize("filesystem", [LOCAL, IN_PLACE], ids=["rename", "in place"])
def test_killed_at_any_line_it_holds_the_old_or_the_new_conversion_and_the_next_mends_it(
    folder: Path, tmp_path: Path, filesystem: fs.FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "3" if folder.exists() else "none"
    kills = Kills(folder, tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr(Owner, "this_process", ended_process)
        patch.setattr(replacing, "ThreadPoolExecutor", ThisThread)
        with traced(kills.trace):
            convert(folder, 4, filesystem)
    kills.look()
    found = []
    for killed in kills.found:
        copy(killed, folder)
        found.append(held(folder))
        convert(folder, 5, filesystem)
        assert_one_conversion(folder, 5)
    assert len(found) >= 8
    assert (found[0], found[-1]) == (old, "4")
    changes = [here for here, then in itertools.pairwise(found) if here != then]
    assert changes == ([old] if filesystem is LOCAL else [old, "torn"])
