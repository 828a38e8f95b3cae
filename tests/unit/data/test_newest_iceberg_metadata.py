"""The newest metadata file of an Iceberg table is found, or the table is refused."""

from __future__ import annotations

import pytest
from pyarrow import fs

from sparkdl_runner.data.dataset.lake.iceberg import newest_metadata
from sparkdl_runner.data.errors import DatasetError


def newest(folder, *names):
    (folder / "metadata").mkdir()
    for name in names:
        (folder / "metadata" / f"{name}.metadata.json").touch()
    return newest_metadata(fs.LocalFileSystem(), str(folder), "table")


def test_the_highest_number_is_the_newest(tmp_path):
    assert newest(tmp_path, "00002-a", "00010-b", "v3") == "00010-b.metadata.json"


@pytest.mark.parametrize("names", [("00001-a", "vfinal"), ("vfinal",), ("v2", "00002-a"), ()])
def test_what_only_a_catalog_can_tell_is_refused(tmp_path, names):
    with pytest.raises(
        DatasetError, match="pass the path of the one that its catalog names"
    ) as told:
        newest(tmp_path, *names)
    assert all(f"{name}.metadata.json" in str(told.value) for name in names)
