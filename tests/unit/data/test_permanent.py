"""What a conversion that stays may be written over."""

from __future__ import annotations

import pytest
from pyarrow import fs

from sparkdl_runner.data import ConversionError
from sparkdl_runner.data.convert.permanent import check_replaceable


def check(folder, *, overwrite: bool) -> None:
    check_replaceable(fs.LocalFileSystem(), str(folder), overwrite)


def test_an_empty_folder_is_free(tmp_path):
    (tmp_path / "inner").mkdir()
    check(tmp_path, overwrite=False)
    check(tmp_path, overwrite=True)


def test_an_earlier_conversion_is_overwritten_only_where_that_is_asked_for(tmp_path):
    for name in ("part-0.parquet", "_manifest.json", "_SUCCESS", ".part-0.parquet.crc"):
        (tmp_path / name).write_text("x")
    check(tmp_path, overwrite=True)
    with pytest.raises(ConversionError, match=r"There are files in .* already"):
        check(tmp_path, overwrite=False)


@pytest.mark.parametrize("name", ["thesis.tex", "part-0.parquet", "_SUCCESS"])
def test_what_is_no_conversion_is_never_overwritten(tmp_path, name):
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / name).write_text("x")
    with pytest.raises(ConversionError, match=r"is no conversion \(it has no _manifest\.json\)"):
        check(tmp_path, overwrite=True)
