"""The files that ranks send stay below the run's folder, and go with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl_runner.rank.world import Peer, assign_ranks
from sparkdl_runner.tracking.report import run_folder
from sparkdl_runner.tracking.report.run_folder import RunFolder

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")],
    backend="torch",
    attempt=2,
)[0]


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    made = RunFolder()
    yield made
    made.remove()


def test_the_parts_of_a_file_are_put_together_and_a_first_part_begins_it_anew(
    folder: RunFolder,
) -> None:
    for data, is_first in ((b"old", True), (b"one ", True), (b"two", False)):
        folder.keep_part(WORLD, "traces/a", data, is_first=is_first)
    assert (folder.path / "traces" / "attempt-2" / "a").read_bytes() == b"one two"


def test_a_log_becomes_chunks_of_whole_parts_in_the_order_of_their_names(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "MAX_CHUNK_BYTES", 8)
    for data, is_first in ((b"old", True), (b"1234", True), (b"5678", False), (b"9", False)):
        folder.keep_part(WORLD, "logs/rank_0", data, is_first=is_first)
    folder.keep_part(WORLD, "logs/rank_1", b"x", is_first=True)
    chunks = sorted((folder.path / "logs" / "rank_0").iterdir())
    assert [chunk.name for chunk in chunks] == [
        f"attempt-2-{number:02}.chunk.txt" for number in (0, 1)
    ]
    assert [chunk.read_bytes() for chunk in chunks] == [b"12345678", b"9"]


@pytest.mark.parametrize(
    "name",
    ["logs/../../evil", "logs", "logs/", "other/x", "/etc/x", "", "logs/{outside}", "logs/a\nb"],
)
def test_what_is_no_file_of_a_rank_is_passed_over(
    folder: RunFolder, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "x"
    folder.keep_part(WORLD, name.format(outside=outside), b"x", is_first=True)
    assert list(folder.path.rglob("*")) == []
    assert not outside.exists()
    assert not (folder.path.parent / "evil").exists()


def test_it_may_be_removed_when_it_is_gone(folder: RunFolder) -> None:
    folder.keep_part(WORLD, "traces/a/b.json", b"{}", is_first=True)
    folder.remove()
    assert not folder.path.exists()
    folder.remove()


@pytest.mark.parametrize("kind", ["traces", "figures"])
def test_a_file_is_kept_with_its_attempt(folder: RunFolder, kind: str) -> None:
    folder.keep_part(WORLD, f"{kind}/a", b"x", is_first=True)
    assert (folder.path / kind / f"attempt-{WORLD.attempt}" / "a").read_bytes() == b"x"
