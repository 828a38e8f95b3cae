"""Files of other writers: read where their rows mean the same, refused in a sentence elsewhere."""

from __future__ import annotations

import base64
import gc
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from parquet_sets import LOCAL

from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.convert import existing
from sparkdl_runner.data.dataset import decoded_sizes, footers, observe
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.footers import in_threads
from sparkdl_runner.data.parquet import row_groups
from sparkdl_runner.data.parquet.encryption import _Thrift
from sparkdl_runner.data.parquet.leaves import owners_of

TABLE = pa.table({"id": [1, 2, 3], "secret": ["a", "b", "c"], "list": [[1], [2], [3]]})


class Keys(pe.KmsClient):
    """Wraps keys in nothing."""

    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64decode(key)


def encrypt(path: Path, *, plaintext_footer: bool) -> None:
    columns = {"key": ["secret", "list.list.element"]}
    config = pe.EncryptionConfiguration(
        footer_key="key", column_keys=columns, plaintext_footer=plaintext_footer
    )
    properties = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE)


def batch_of(folder: Path, **options: Any) -> dict[str, Any]:
    """All rows, in order."""
    converter = make_spark_converter(f"file://{folder}", allow_nulls=True)
    settings = {"batch_size": 6, "num_epochs": 1, "shuffle": False, "tail": "uneven", **options}
    with converter.make_torch_dataloader(**settings) as loader:
        (batch,) = loader
    return dict(batch)


@pytest.mark.parametrize(
    ("plaintext_footer", "sentence"),
    [
        (True, r"a\.parquet has encrypted columns: list\.list\.element, secret\. Keys are not"),
        (False, r"a\.parquet is encrypted, its footer, too\. Keys are not taken here"),
    ],
)
def test_an_encrypted_file_is_refused_and_ends_no_process(
    tmp_path: Path, plaintext_footer: bool, sentence: str
) -> None:
    encrypt(tmp_path / "a.parquet", plaintext_footer=plaintext_footer)
    with pytest.raises(DatasetError, match=sentence):
        describe_parquet(LOCAL, str(tmp_path), ["a.parquet"])


@pytest.mark.parametrize(
    "content",
    [b"", b"\x15", b"\x1c" * 500, b"\x19\xfc\xff\xff\xff\xff\xff", b"\x16" + b"\xff" * 99],
)
def test_bytes_that_are_no_footer_are_no_trap(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"ends too early|nested too deeply|too long"):
        _Thrift(content).struct(0)


def test_a_row_group_that_lacks_a_column(tmp_path: Path) -> None:
    footer = bytes.fromhex(
        "1502 192c 4806 736368656d61 1502 00 1502 2500 1801 61 00"  # A schema of one column.
        "1602 191c 190c 1600 1602 00 00"  # A row group of one row and no column.
    )
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DatasetError, match=r"a\.parquet has a broken .* lacks some of the 1 col"):
        describe_parquet(LOCAL, str(tmp_path), ["a.parquet"])


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match="has several columns called 'a'"):
        describe_parquet(LOCAL, str(tmp_path), ["a.parquet"])


def test_damaged_pages_are_told_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [[1, 2]] * 9, "y": [[1, 2]] * 9}), path, row_group_size=5)
    content = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(1).column(1).data_page_offset
    content[start : start + 8] = b"\xff" * 8
    path.write_bytes(content)
    place = r"a\.parquet, row group 1, column 'y' cannot be read: .*Write the file again, or"
    with pytest.raises(DatasetError, match=place):
        describe_parquet(LOCAL, str(tmp_path), ["a.parquet"])
    with pytest.raises(DatasetError, match=place):
        make_spark_converter(tmp_path, columns=["x", "y"])
    assert len(make_spark_converter(tmp_path, columns=["x"])) == 9  # As the error advises.


def test_a_null_among_lists_of_a_fixed_size(tmp_path: Path) -> None:
    column = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    try:
        describe_parquet(LOCAL, str(tmp_path), ["a.parquet"])
    except DatasetError as error:
        assert "column 'x' cannot be read" in str(error)  # noqa: PT017
        assert "write the column as a list without one" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"a": 1}, None, {"a": 2}]),
        pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        pa.array([None, None, None]),
        pa.array([[{"a": 1}], [], None]),
    ],
)
def test_a_column_that_no_loader_reads_is_left_out(
    tmp_path: Path, column: pa.Array, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3], "other": column}), tmp_path / "a.parquet")
    with caplog.at_level(logging.WARNING):
        assert list(batch_of(tmp_path)) == ["id"]
    assert "torch has no such types: 'other'" in caplog.text
    assert "columns=[" in caplog.text
    with pytest.raises(DatasetError, match="column 'other' is"):
        batch_of(tmp_path, columns=["id", "other"])


def test_a_value_that_torch_cannot_hold_is_no_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, 2**63], pa.uint64())}), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=r"column 'x', row 1: it holds 9223372036854775808, and"):
        batch_of(tmp_path)


def test_files_of_other_writers_are_one_table_if_their_values_are(tmp_path: Path) -> None:
    ids, texts = pa.array([1, 2]), pa.array(["a", "b"])
    for name, columns in {
        "a": {"id": ids, "text": texts},
        "b": {"text": texts.cast(pa.large_string()), "id": ids},
        "c": {"id": ids, "text": texts.dictionary_encode()},
    }.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    batch = batch_of(tmp_path)
    assert batch["id"].tolist() == [1, 2] * 3
    assert list(batch["text"]) == ["a", "b"] * 3


def test_a_table_that_is_written_while_it_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    real = existing.describe_parquet

    def late(*arguments: Any, **options: Any) -> Any:
        pq.write_table(TABLE.slice(1), tmp_path / "a.parquet")
        return real(*arguments, **options)

    monkeypatch.setattr(existing, "describe_parquet", late)
    with pytest.raises(DatasetError, match=r"a\.parquet in .* was written while it was described"):
        make_spark_converter(f"file://{tmp_path}")


def test_nulls_that_an_old_writer_counted_are_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"x": [1, None, 3]}), tmp_path / "a.parquet")
    monkeypatch.setattr(decoded_sizes, "sample", None)
    read: list[str] = []
    real = row_groups._MISCOUNTS
    assert real.match("parquet-cpp-arrow version 4.0.1")
    assert real.match("parquet-cpp version 1.5.1-SNAPSHOT")
    assert not real.match("parquet-cpp-arrow version 14.0.2")
    monkeypatch.setattr(row_groups, "_MISCOUNTS", re.compile(""))
    observed = observe._observe_file
    monkeypatch.setattr(
        observe, "_observe_file", lambda *args: (read.append(args[1]), observed(*args))[1]
    )
    assert describe_parquet(LOCAL, str(tmp_path), ["a.parquet"]).column("x").null_count == 1
    assert read


def test_leaves_belong_to_the_longest_name_that_fits() -> None:
    table = pa.table({"a": [[1]], "a.b": [1], "a.b.c": [{"d": 1}], "": [1]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    assert owners_of(parquet) == ["a", "a.b", "a.b.c", ""]


def test_items_are_handed_to_threads_together_and_stay_in_order() -> None:
    assert in_threads(lambda item: -item, range(1_000), 3) == [-item for item in range(1_000)]
    assert in_threads(str, [7], 3) == ["7"]


def test_a_folder_of_many_small_files_is_described_as_any_other(tmp_path: Path) -> None:
    names = [f"{number:03}.parquet" for number in range(70)]
    for number, name in enumerate(names):
        table = pa.table({"id": np.arange(3) + 3 * number, "text": [f"{number}"] * 3})
        pq.write_table(table, tmp_path / name)
    manifest = describe_parquet(LOCAL, str(tmp_path), names)
    assert [file.path for file in manifest.files] == names
    assert manifest.rows == 210
    assert manifest.column("text").group_row_bytes == 2


def written(folder: Path, number: int, table: pa.Table) -> str:
    pq.write_table(table, folder / f"{number:03}.parquet")
    return f"{number:03}.parquet"


def test_the_schema_of_a_folder_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [written(tmp_path, number, pa.table({"id": [number]})) for number in range(70)]
    parsed = []
    parse = footers.parsed_footer
    monkeypatch.setattr(
        footers, "parsed_footer", lambda tail, path: (parsed.append(path), parse(tail, path))[1]
    )
    assert describe_parquet(LOCAL, str(tmp_path), names).rows == 70
    assert len(parsed) == 71


def test_files_of_one_schema_may_say_more_beside_it_and_store_it_otherwise(tmp_path: Path) -> None:
    text = pa.array(["a", None, "b"])
    plain, dictionary = pa.table({"x": text}), pa.table({"x": text.dictionary_encode()})
    tables = [plain.replace_schema_metadata({"n": str(number)}) for number in range(4)]
    tables += [dictionary, plain, plain.slice(0, 0)]
    names = [written(tmp_path, number, table) for number, table in enumerate(tables)]
    manifest = describe_parquet(LOCAL, str(tmp_path), names)
    assert manifest.schema == pa.schema({"x": pa.string()})
    assert (manifest.rows, manifest.column("x").null_count) == (18, 6)
    assert manifest.row_groups.rows.tolist() == [3] * 6 + [0] * (len(manifest.row_groups) - 6)


def test_types_that_parquet_stores_alike_are_told_apart(tmp_path: Path) -> None:
    whole = pa.table({"x": pa.array([1], pa.duration("us"))})
    names = [written(tmp_path, 0, pa.table({"x": [1]})), written(tmp_path, 1, whole)]
    with pytest.raises(DatasetError, match="'x' is duration"):
        describe_parquet(LOCAL, str(tmp_path), names)


def test_describing_keeps_no_objects_of_each_file(tmp_path: Path) -> None:
    names = [
        written(tmp_path, number, pa.table({"id": [number], "text": ["a"]}))
        for number in range(300)
    ]
    describe_parquet(LOCAL, str(tmp_path), names[:3])  # What is kept once is made here.
    gc.collect()
    before = len(gc.get_objects())
    manifest = describe_parquet(LOCAL, str(tmp_path), names)
    gc.collect()
    assert manifest.rows == 300
    assert len(gc.get_objects()) - before < 150
