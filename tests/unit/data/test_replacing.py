"""A conversion takes an earlier one's place whole, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from parquet_sets import LOCAL, numbered, write_groups
from pyarrow import fs

from sparkdl_runner.data import ConversionError, DatasetError, make_spark_converter
from sparkdl_runner.data.convert.replacing import remove_abandoned, replace
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.held_folder import HeldFolder
from sparkdl_runner.data.dataset.leftovers import MARKER_NAME, Owner
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, Manifest

IN_PLACE = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("file")))
"""The same files, by a file system that overwrites what has a name, as HDFS does."""


def convert(folder: Path, rows: int, filesystem: fs.FileSystem = LOCAL) -> None:
    def write(subfolder: str) -> Manifest:
        (folder / subfolder).mkdir()
        pq.write_table(numbered(rows), folder / subfolder / "part-0.parquet")
        return describe_parquet(filesystem, str(folder), [f"{subfolder}part-0.parquet"])

    replace(filesystem, str(folder), "local-1", write)


def convert_flat(folder: Path, rows: int) -> None:
    """As the first conversions were: the files in the folder itself, and what Spark leaves."""
    write_groups(folder, numbered(rows), [[rows]])
    for name in ("_SUCCESS", "._SUCCESS.crc", ".part-00000.parquet.crc"):
        (folder / name).write_bytes(b"")


def ids(folder: Path) -> list[int]:
    """What the manifest's files hold, which are all as it says."""
    converter = make_spark_converter(f"file://{folder}")
    paths = [url.removeprefix("file://") for url in converter.file_urls]
    found = [row for path in paths for row in pq.ParquetFile(path).read()["id"].to_pylist()]
    assert len(found) == len(converter)
    return sorted(found)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_one_conversion(folder: Path, rows: int) -> None:
    assert ids(folder) == list(range(rows))
    one, manifest = files(folder)
    assert (one.split("/")[2], manifest) == ("part-0.parquet", MANIFEST_NAME)


@pytest.fixture(params=["none", "flat", "sub folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where there is no conversion, one as the first ones were, or one as they are."""
    folder = tmp_path / "orders"
    if request.param == "flat":
        convert_flat(folder, 3)
    elif request.param == "sub folder":
        convert(folder, 3)
    return folder


@pytest.mark.parametrize("filesystem", [LOCAL, IN_PLACE], ids=["rename", "in place"])
def test_only_the_new_conversion_is_left(folder: Path, filesystem: fs.FileSystem) -> None:
    for rows in (4, 5):
        convert(folder, rows, filesystem)
        assert_one_conversion(folder, rows)


def test_what_no_conversion_wrote_is_left_alone(tmp_path: Path) -> None:
    convert_flat(tmp_path, 3)
    (tmp_path / "notes.txt").write_text("keep")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "table.parquet").write_text("keep")
    convert(tmp_path, 4)
    assert ids(tmp_path) == list(range(4))
    assert files(tmp_path)[1:] == [MANIFEST_NAME, "notes.txt", "other/table.parquet"]


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_writer_that_fails_changes_nothing(
    folder: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(subfolder: str) -> Manifest:
        (folder / subfolder).mkdir()
        (folder / subfolder / "part-0.parquet").write_text("half")
        raise error

    before = files(folder)
    with pytest.raises(type(error)):
        replace(LOCAL, str(folder), "local-1", fail)
    assert files(folder) == before
    assert ("The earlier conversion in" in caplog.text) == bool(before)
    assert folder.exists() == bool(before)
    if before:
        assert ids(folder) == [0, 1, 2]


class FullHandler(fs.FSSpecHandler):
    """A disk that is full when the manifest is to be replaced, for as often as it is told."""

    times = 0

    def open_output_stream(self, path: str, metadata: object) -> object:
        stream = super().open_output_stream(path, metadata)  # Which has cut the file short.
        if path.endswith(MANIFEST_NAME) and self.times:
            self.times -= 1
            stream.close()
            raise OSError("No space left on device")
        return stream


def test_a_manifest_that_was_cut_short_by_a_failure_is_put_back(folder: Path) -> None:
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    handler = FullHandler(fsspec.filesystem("file"))
    handler.times = 1
    with pytest.raises(ConversionError, match="No space left"):
        convert(folder, 4, fs.PyFileSystem(handler))
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


def test_what_keeps_the_tidying_up_from_its_end_does_not_hide_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(subfolder: str) -> Manifest:
        (tmp_path / subfolder).mkdir()
        monkeypatch.setattr(FullHandler, "delete_dir", gone)
        raise KeyError("the writer's own")

    def gone(*_: object) -> None:
        raise ConnectionError("no name node")

    with pytest.raises(KeyError, match="the writer's own"):
        replace(fs.PyFileSystem(FullHandler(fsspec.filesystem("file"))), str(tmp_path), "l", fail)
    assert "Cannot delete the unfinished conversion" in caplog.text
    assert "no name node" in caplog.text


def test_a_torn_manifest_is_said_and_mended(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    convert(folder, 3)
    (folder / MANIFEST_NAME).write_text('{"format_version": 1')
    with pytest.raises(DatasetError, match="cut short"):
        ids(folder)
    convert(folder, 4)
    assert "this one writes it anew" in caplog.text
    assert_one_conversion(folder, 4)


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ConversionError, match=r"Cannot write to /proc/nothing/orders \("):
        convert(Path("/proc/nothing/orders"), 3)


def leave_behind(folder: Path, **changes: object) -> Path:
    """A half-written conversion whose marker tells of this process, but for the changes."""
    left = folder / "_conversion-left"
    (left / "files").mkdir(parents=True)
    (left / "files" / "part-0.parquet").write_text("half")
    owner = {**vars(Owner.this_process(left.name, "local-1")), **changes}
    (left / MARKER_NAME).write_text(json.dumps(owner))
    return left


def test_what_another_process_may_be_writing_is_left_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = leave_behind(folder)
    convert(folder, 4)
    assert left.exists(), "this process is alive"
    assert not caplog.text
    (left / MARKER_NAME).unlink()
    left.rename(folder / "elsewhere")
    left = leave_behind(folder, hostname="other-host")
    convert(folder, 5)
    assert left.exists(), "nobody here knows"
    assert f"{left} is being written by a process on other-host, or was left" in caplog.text
    assert ids(folder) == list(range(5))


def test_nobody_is_told_to_delete_what_the_manifest_lists(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    convert(folder, 4)
    (current,) = folder.glob("_conversion-*")
    owner = {**vars(Owner.this_process(current.name, "local-1")), "hostname": "other-host"}
    (current / MARKER_NAME).write_text(json.dumps(owner))
    remove_abandoned(LOCAL, str(folder))
    assert ids(folder) == list(range(4))
    assert not caplog.text


def test_what_a_process_left_that_has_ended_is_deleted(folder: Path) -> None:
    leave_behind(folder, started_ticks=1)
    convert(folder, 4)
    assert_one_conversion(folder, 4)


def test_of_two_that_overwrite_at_once_both_are_whole(folder: Path) -> None:
    def write_while_another_does(subfolder: str) -> Manifest:
        (folder / subfolder).mkdir()
        pq.write_table(numbered(5), folder / subfolder / "part-0.parquet")
        convert(folder, 4)
        assert ids(folder) == list(range(4))
        return describe_parquet(LOCAL, str(folder), [f"{subfolder}part-0.parquet"])

    replace(LOCAL, str(folder), "local-1", write_while_another_does)
    assert_one_conversion(folder, 5)


def test_a_converter_of_before_is_refused_and_never_reads_the_new_files(tmp_path: Path) -> None:
    convert(tmp_path, 3)
    before = make_spark_converter(f"file://{tmp_path}")
    with before.make_torch_dataloader(1, num_epochs=2) as loader:
        assert len(loader) == 3
    convert(tmp_path, 3)  # As many rows, and no other rows.
    with (
        pytest.raises(DatasetError, match="was overwritten by another one after this converter"),
        before.make_torch_dataloader(1, num_epochs=1),
    ):
        pass


def test_a_loader_of_before_ends_with_an_error_that_names_the_file(tmp_path: Path) -> None:
    convert(tmp_path, 3)
    before = make_spark_converter(f"file://{tmp_path}")
    with before.make_torch_dataloader(1, num_epochs=1) as loader:
        convert(tmp_path, 4)
        with pytest.raises(DatasetError, match=r"part-0\.parquet"):
            list(loader)


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A file of this user's elsewhere, to which another user's link leads."""
    path = tmp_path / "thesis"
    path.write_text("years of work")
    return path


def without_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a mounted object store."""

    def refuse(*_: object) -> None:
        raise OSError("Operation not supported")

    monkeypatch.setattr(HeldFolder, "move", refuse)


def test_a_manifest_is_not_written_through_a_link(
    tmp_path: Path, thesis: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "orders"
    without_rename(monkeypatch)

    def write(subfolder: str) -> Manifest:
        (folder / subfolder).mkdir()
        pq.write_table(numbered(3), folder / subfolder / "part-0.parquet")
        (folder / MANIFEST_NAME).symlink_to(thesis)
        return describe_parquet(LOCAL, str(folder), [f"{subfolder}part-0.parquet"])

    with pytest.raises(ConversionError, match="symbolic link"):
        replace(LOCAL, str(folder), "local-1", write)
    assert thesis.read_text() == "years of work"


def test_an_earlier_manifest_is_not_put_back_through_a_link(
    tmp_path: Path, thesis: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "orders"
    convert(folder, 3)

    def fail(_: str) -> Manifest:
        (folder / MANIFEST_NAME).unlink()
        (folder / MANIFEST_NAME).symlink_to(thesis)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace(LOCAL, str(folder), "local-1", fail)
    assert thesis.read_text() == "years of work"
    assert "Cannot delete the unfinished conversion" in caplog.text


def test_what_a_link_leads_to_is_not_taken_for_the_earlier_manifest(
    tmp_path: Path, thesis: Path
) -> None:
    """It would be put back, as a file that all may read."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / MANIFEST_NAME).symlink_to(thesis)
    with pytest.raises(ConversionError, match=r"Cannot read .*symbolic link"):
        convert(tmp_path / "orders", 3)


def test_a_link_in_the_place_of_the_sub_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, mine = tmp_path / "orders", tmp_path / "mine"
    convert(mine, 5)
    before = (mine / MANIFEST_NAME).read_bytes()
    without_rename(monkeypatch)

    def write(subfolder: str) -> Manifest:
        (folder / subfolder).mkdir()
        pq.write_table(numbered(3), folder / subfolder / "part-0.parquet")
        found = describe_parquet(LOCAL, str(folder), [f"{subfolder}part-0.parquet"])
        (folder / subfolder).parent.rename(tmp_path / "moved")
        (folder / subfolder).parent.symlink_to(mine)
        return found

    with pytest.raises(ConversionError, match="Cannot write"):
        replace(LOCAL, str(folder), "local-1", write)
    assert (mine / MANIFEST_NAME).read_bytes() == before


def test_a_folder_that_a_person_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "orders").symlink_to(tmp_path / "disk")
    convert(tmp_path / "orders", 3)
    convert(tmp_path / "orders", 4)
    assert_one_conversion(tmp_path / "orders", 4)
