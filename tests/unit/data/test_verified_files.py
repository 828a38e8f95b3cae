"""A converter reads the files that it was made of, and says so where it finds others."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import zlib
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from parquet_sets import LOCAL, numbered, write_groups

from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter
from sparkdl_runner.data.dataset import converted as converted_module
from sparkdl_runner.data.dataset import verified_files
from sparkdl_runner.data.dataset.converted import Converted, LocalFiles
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import ChangedFileError, DatasetError

NOBODY = 65534
NAME = "part-00000.parquet"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Of one file, whose content has a known checksum, as Spark's have."""
    manifest = write_groups(tmp_path / "set", numbered(30), [[10, 20]])
    content = (tmp_path / "set" / NAME).read_bytes()
    crc32 = zlib.crc32(content)
    manifest = replace(manifest, files=(manifest.files[0]._replace(crc32=crc32),))
    manifest.write(LOCAL, str(tmp_path / "set"))
    return manifest


@pytest.fixture
def in_rank(tmp_path: Path, manifest: Manifest) -> SparkDatasetConverter:
    """The converter as it comes to a rank."""
    converter = make_spark_converter(f"file://{tmp_path}/set")
    rank: SparkDatasetConverter = pickle.loads(pickle.dumps(converter))
    return rank


def swap(path: Path, owner: int | None = None) -> None:
    """Puts a file of the same size, rows, footer and time there, which holds other numbers."""
    before, content = path.stat(), bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(1).column(1)
    content[group.data_page_offset + group.total_compressed_size - 5] ^= 1
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if owner is not None:
        os.chown(path, owner, owner)


def touch(path: Path) -> None:
    """Gives it another time: the kernel's clock may stand still for some milliseconds."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 2_000_000_000))


def ids(converter: SparkDatasetConverter) -> list[int]:
    with converter.make_torch_dataloader(10, num_epochs=1, shuffle=False) as loader:
        return [int(one) for batch in loader for one in batch["id"]]


def test_files_that_were_swapped_for_others_of_equal_size_rows_and_time(
    tmp_path: Path, in_rank: SparkDatasetConverter
) -> None:
    assert ids(in_rank) == list(range(30))
    swap(tmp_path / "set" / NAME)
    with pytest.raises(ChangedFileError, match=rf"{NAME} was changed .* its content is not the"):
        ids(in_rank)


def test_a_folder_that_was_swapped_together_with_its_manifest(
    tmp_path: Path, in_rank: SparkDatasetConverter
) -> None:
    table = pa.table({**numbered(30).to_pydict(), "value": pa.array([1e9] * 30, pa.float32())})
    write_groups(tmp_path / "set", table.cast(numbered(1).schema), [[10, 20]])
    with pytest.raises(DatasetError, match="overwritten by another one after this converter"):
        ids(in_rank)


def test_a_file_that_is_swapped_while_a_loader_reads(
    tmp_path: Path, in_rank: SparkDatasetConverter
) -> None:
    with in_rank.make_torch_dataloader(10, num_epochs=1) as loader:
        swap(tmp_path / "set" / NAME)
        with pytest.raises(ChangedFileError, match=rf"^/.*{NAME} was changed after the conversion"):
            list(loader)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("opened", [False, True])
def test_what_another_user_put_there_is_refused_whatever_it_holds(
    tmp_path: Path, in_rank: SparkDatasetConverter, opened: bool
) -> None:
    """A CRC-32 is made equal in a moment."""
    path = tmp_path / "set" / NAME
    before = path.stat()

    def put() -> None:
        shutil.copy(path, tmp_path / "other")
        os.chown(tmp_path / "other", NOBODY, NOBODY)
        os.utime(tmp_path / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
        (tmp_path / "other").rename(path)

    def train() -> None:
        if not opened:
            put()
        with in_rank.make_torch_dataloader(10, num_epochs=1) as loader:
            put()
            list(loader)

    with pytest.raises(ChangedFileError, match=rf"{NAME} is not the file .* user nobody .*65534"):
        train()


def test_a_pipe_in_the_place_of_a_file_makes_nobody_wait(
    tmp_path: Path, in_rank: SparkDatasetConverter
) -> None:
    with in_rank.make_torch_dataloader(10, num_epochs=1) as loader:
        (tmp_path / "set" / NAME).unlink()
        os.mkfifo(tmp_path / "set" / NAME)
        with pytest.raises(DatasetError, match="is a pipe"):
            list(loader)


def test_other_rights_and_a_restored_file_are_fine_and_looked_into_once(
    tmp_path: Path, in_rank: SparkDatasetConverter, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "set" / NAME
    path.chmod(0o600)
    assert ids(in_rank) == list(range(30))
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    looks = []
    crc32_of = verified_files.crc32_of
    monkeypatch.setattr(verified_files, "crc32_of", lambda one: looks.append(1) or crc32_of(one))
    with in_rank.make_torch_dataloader(10, num_epochs=3) as loader:
        assert len(list(loader)) == 9
    assert len(looks) == 1


def test_without_a_checksum_a_file_must_keep_its_time(tmp_path: Path, manifest: Manifest) -> None:
    path = tmp_path / "set" / NAME
    unknown = replace(manifest, files=(manifest.files[0]._replace(crc32=None),))
    dataset = Dataset(unknown, LOCAL, str(tmp_path / "set"))
    converted = Converted.of(dataset)
    path.chmod(0o600)
    VerifiedFiles(dataset, converted).check_all()
    touch(path)
    with pytest.raises(ChangedFileError, match="its time of change is not the one"):
        VerifiedFiles(dataset, converted).check_all()


def test_on_another_host_users_may_have_other_numbers(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the times and checksums of the manifest count."""
    dataset = Dataset(manifest, LOCAL, str(tmp_path / "set"))
    converted = Converted.of(dataset)
    assert converted.local is not None
    there = replace(converted.local, host="another", owners=converted.local.owners + 1)
    converted = replace(converted, local=there)
    VerifiedFiles(dataset, converted).check_all()
    swap(tmp_path / "set" / NAME)
    touch(tmp_path / "set" / NAME)
    with pytest.raises(ChangedFileError, match="its content is not the one"):
        VerifiedFiles(dataset, converted).check_all()


def test_on_remote_storage_an_object_that_was_written_again_is_refused(
    tmp_path: Path, manifest: Manifest
) -> None:
    path = tmp_path / "set" / NAME
    remote = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fsspec.filesystem("file")))
    dataset = Dataset(manifest, remote, str(tmp_path / "set"))
    converted = Converted.of(dataset)
    assert converted.local is None
    swap(path)
    touch(path)
    with pytest.raises(ChangedFileError, match=rf"{NAME} was written again 2 s after"):
        VerifiedFiles(dataset, converted).check_all()


@pytest.mark.parametrize(("has_proc", "host"), [(True, None), (False, socket.gethostname())])
def test_a_system_without_proc_goes_by_the_hosts_name(
    monkeypatch: pytest.MonkeyPatch, has_proc: bool, host: str | None
) -> None:
    monkeypatch.setattr(converted_module, "HAS_PROC", has_proc)
    monkeypatch.setattr(converted_module, "boot_id", lambda: "")
    assert converted_module._this_host.__wrapped__() == host


def test_where_nobody_says_which_host_this_is_times_count(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converted_module, "_this_host", lambda: None)
    assert LocalFiles.of(Dataset(manifest, LOCAL, str(tmp_path / "set"))) is None
