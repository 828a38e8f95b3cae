"""A file of which one byte was changed is found, also where size and footer stayed the same."""

from __future__ import annotations

import os
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_sets import LOCAL, load, numbered

from one_module import replace_in
from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.data.dataset import footers
from sparkdl_runner.data.dataset.checksum import combine, crc32_from_sidecar
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.read.reader import _CAN_VERIFY_PAGES

NAME = "part-00000.parquet"


def parts_of(content: bytes, part_bytes: int) -> np.ndarray:
    starts = range(0, len(content), part_bytes)
    return np.array([zlib.crc32(content[at : at + part_bytes]) for at in starts], dtype=">u4")


@settings(max_examples=40)
@given(content=st.binary(max_size=3000), part_bytes=st.integers(1, 700))
def test_parts_combine_to_the_checksum_of_the_whole(content: bytes, part_bytes: int) -> None:
    assert combine(parts_of(content, part_bytes), part_bytes, len(content)) == zlib.crc32(content)


def write_sidecar(path: Path) -> None:
    """Writes what Hadoop's ChecksumFileSystem leaves beside a file."""
    parts = parts_of(path.read_bytes(), 512)
    content = b"crc\0" + (512).to_bytes(4, "big") + parts.tobytes()
    (path.parent / f".{path.name}.crc").write_bytes(content)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    directory = tmp_path / "set"
    directory.mkdir()
    checksums = {"write_page_checksum": True} if _CAN_VERIFY_PAGES else {}
    pq.write_table(numbered(3000), directory / NAME, row_group_size=1000, **checksums)
    write_sidecar(directory / NAME)
    manifest = describe_parquet(LOCAL, str(directory), [NAME], just_written=True)
    manifest.write(LOCAL, str(directory))
    return manifest


def alter(path: Path, *, keep_time: bool = False) -> None:
    """Changes one byte among the values of the last row group."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(2).column(1)
    content[group.data_page_offset + group.total_compressed_size - 5] ^= 1
    path.write_bytes(content)
    # A clock of the kernel may stand still for some milliseconds.
    later_ns = 0 if keep_time else 1_000_000_000
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later_ns))


def test_sidecars_that_are_not_of_the_file_are_not_taken(
    tmp_path: Path, manifest: Manifest
) -> None:
    path = tmp_path / "set" / NAME
    size = path.stat().st_size
    assert manifest.files[0].crc32 == zlib.crc32(path.read_bytes())
    assert crc32_from_sidecar(LOCAL, str(path), size + 512) is None
    for content in (b"", b"crc\0", b"CRC\0" + bytes(100), b"crc\0" + bytes(4)):
        (path.parent / f".{NAME}.crc").write_bytes(content)
        assert crc32_from_sidecar(LOCAL, str(path), size) is None
    (path.parent / f".{NAME}.crc").unlink()
    assert crc32_from_sidecar(LOCAL, str(path), size) is None


def test_a_changed_byte_is_found_on_opening(tmp_path: Path, manifest: Manifest) -> None:
    directory = tmp_path / "set"
    alter(directory / NAME)
    with pytest.raises(DatasetError, match=rf"{NAME} was changed .* its content is not"):
        load(directory, manifest, batch_size=4)


def test_a_copy_is_the_same_data_set_and_looked_into_once(
    tmp_path: Path, manifest: Manifest
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "set", copy, copy_function=shutil.copyfile)
    os.utime(copy / NAME, (1, 1))
    checked = VerifiedFiles(Dataset(manifest, LOCAL, str(copy))).check_all()
    found = checked.manifest
    assert found.fingerprint == manifest.fingerprint
    assert found.files[0].modified_ns == 1_000_000_000
    assert VerifiedFiles(checked).check_all() is checked
    opened, _, _ = make_spark_converter(f"file://{copy}").open()
    assert opened.files[0].modified_ns == 1_000_000_000


def test_a_time_of_whole_seconds_counts_once_they_are_over(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As object stores tell it: a file could change again and show the same time."""
    path = tmp_path / "set" / NAME
    now = 1_700_000_000
    replace_in(monkeypatch, footers, "time", time_ns=lambda: now * 1_000_000_000 + 1)
    for seconds, known in ((now, None), (now - 1, None), (now - 2, (now - 2) * 1_000_000_000)):
        os.utime(path, (seconds, seconds))
        dataset = Dataset(manifest, LOCAL, str(tmp_path / "set"))
        assert VerifiedFiles(dataset).check_all().manifest.files[0].modified_ns == known


def test_other_content_is_another_data_set(manifest: Manifest) -> None:
    file = manifest.files[0]._replace(crc32=1)
    assert replace(manifest, files=(file,)).fingerprint != manifest.fingerprint


@pytest.mark.skipif(not _CAN_VERIFY_PAGES, reason="pyarrow 14 does not verify the pages of files")
def test_where_no_checksum_is_known_pages_are_verified(tmp_path: Path, manifest: Manifest) -> None:
    directory = tmp_path / "set"
    alter(directory / NAME, keep_time=True)
    unknown = replace(manifest, files=(manifest.files[0]._replace(crc32=None),))
    with (
        load(directory, unknown, batch_size=4) as loader,
        pytest.raises(DatasetError, match=rf"{NAME}, row group 2.*(CRC|checksum)"),
    ):
        list(loader)
