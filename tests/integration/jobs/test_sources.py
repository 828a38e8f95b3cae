"""What jobs read: CSV as a person means it, one file as well as a folder, and what is said else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl_runner.jobs import convert, train
from sparkdl_runner.jobs.parsing import command
from sparkdl_runner.jobs.spark.csv_files import spoilt_column

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.integration

FUNCTION = """
def train(data, checkpoint_url=None):
    with data.make_torch_dataloader(2, num_epochs=1, tail="uneven") as loader:
        return sum(float(batch["amount"].sum()) for batch in loader)
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    environment = dict(os.environ)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adding.py").write_text(FUNCTION)
    yield
    sys.modules.pop("adding", None)
    os.environ.clear()
    os.environ.update(environment)


def call(job: command.Command, *argv: object) -> int:
    return command.main(job, [str(one) for one in argv])


def trained(data: object) -> int:
    function = ("--function", "adding:train", "--num-proc", -1, "--backend", "torch")
    return call(train.JOB, *function, "--data", f"data={data}")


def converted_types(spark: Any, conversion: Path) -> list[tuple[str, str]]:
    (written,) = conversion.rglob("*.parquet")
    return spark.read.parquet(str(written)).dtypes  # type: ignore[no-any-return]


def test_a_csv_file_is_read_with_its_header_and_its_types(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small.csv"
    small.write_text("amount,day\n1.5,1\n2.5,2\n4,3\n")
    assert call(convert.JOB, "--source", small, "--output", tmp_path / "conv") == 0
    assert "3 rows in 1 file at " in capfd.readouterr().out
    assert converted_types(spark, tmp_path / "conv") == [("amount", "float"), ("day", "int")]
    assert trained(small) == 0
    assert "returned 8.0" in capfd.readouterr().out

    # One value makes a text of each number, and no loader takes those.
    odd = tmp_path / "odd.csv"
    odd.write_text("amount,day\n" + "1.5,1\n" * 20 + "n/a,2\n")
    assert trained(odd) == 2
    told = capfd.readouterr().err
    assert "the column 'amount' of " in told
    assert "holds numbers, and 1 other value such as 'n/a'" in told
    assert "by options {nullValue: 'n/a'} what stands for a missing" in told
    said = f"{{path: {odd}, options: {{nullValue: n/a}}, where: amount is not null}}"
    assert call(convert.JOB, "--source", said, "--output", tmp_path / "odd") == 0
    assert converted_types(spark, tmp_path / "odd") == [("amount", "float"), ("day", "int")]

    # What the user says of a file wins, in Spark's own spelling and in any other.
    as_text = f"{{path: {small}, options: {{inferschema: false}}}}"
    assert call(convert.JOB, "--source", as_text, "--output", tmp_path / "text") == 0
    assert converted_types(spark, tmp_path / "text") == [("amount", "string"), ("day", "string")]


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        (["1", "2", "n/a"], 1),
        (["1", "2.5", "-", "NA", " 4"], 2),
        (["1", "n/a", "n/a"], None),
        (["1", "2", "3a"], None),
        (["1"] * 19 + ["3a"], 1),
        (["1", "2", None], None),
    ],
)
def test_a_column_of_numbers_with_words_for_a_missing_value(
    spark: Any, values: list[str | None], odd: int | None
) -> None:
    found = spoilt_column(spark.createDataFrame([(one,) for one in values], "`a b` string"))
    assert (found and (found.name, found.texts)) == (odd and ("a b", odd))


def test_a_csv_file_without_a_header_loses_no_row(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare.csv"
    bare.write_text("1.5,one\n2.5,two\n")
    assert call(convert.JOB, "--source", bare, "--output", tmp_path / "bare") == 2
    assert "bare.csv holds 1.5, and should be the names of" in capfd.readouterr().err
    source = f"{{path: {bare}, options: {{header: false}}}}"
    assert call(convert.JOB, "--source", source, "--output", tmp_path / "bare") == 0
    told = capfd.readouterr().out
    assert told.startswith("2 rows in ")
    assert "Columns: _c0, _c1." in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a,b,label\n", "x.csv has a header (a, b, label) and no rows: look at what wrote it."),
        ("", "x.csv is empty: it has no columns and no rows."),
        (None, "there is no file to read in ./x. Files are Parquet unless format says"),
    ],
    ids=["only a header", "empty", "a folder"],
)
def test_what_holds_no_rows_is_said_so(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str | None, told: str
) -> None:
    if content is None:
        (tmp_path / "x").mkdir()
    else:
        (tmp_path / "x.csv").write_text(content)
    path = tmp_path / ("x" if content is None else "x.csv")
    assert call(convert.JOB, "--source", path, "--output", tmp_path / "conv") == 2
    assert told.replace("./x", str(path)) in capfd.readouterr().err


def test_one_parquet_file_is_trained_on(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = spark.createDataFrame([(1.0,), (2.0,), (4.0,)], "amount double")
    frame.coalesce(1).write.parquet(str(tmp_path / "folder"))
    (file,) = (tmp_path / "folder").glob("*.parquet")
    assert trained(file) == 0
    assert "returned 7.0" in capfd.readouterr().out


def test_a_file_of_another_kind_is_named_by_what_spark_found(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "adding.py"
    assert call(convert.JOB, "--source", code, "--output", tmp_path / "none") == 2
    (told,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("convert: ")]
    assert "adding.py is not a Parquet file" in told
    assert told.endswith("unless format says that they are csv, json, orc or delta.")
    assert "An error occurred" not in told


def test_a_folder_that_was_taken_for_a_table(tmp_path: Path) -> None:
    # As a process of its own: Java keeps the working folder that it was started in.
    (tmp_path / "conv").mkdir()
    refused = subprocess.run(
        [
            *(sys.executable, str(ROOT / "jobs" / "train.py"), "--function", "adding:train"),
            *("--num-proc", "-1", "--backend", "torch", "--data", "data=conv"),
            *("--checkpoint-url", "new/checkpoints"),
        ],
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2, refused.stderr
    assert "train: there is no table conv; there are files of that name: write ./conv, since" in (
        refused.stderr
    )
    assert not (tmp_path / "new").exists(), "what is refused leaves nothing"
