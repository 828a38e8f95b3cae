"""No pickle of somebody else reaches petastorm's readers, however the folder changes meanwhile."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from parquet_sets import numbered, write_groups

from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.consumers.petastorm.arguments import without_foreign_pickles
from sparkdl_runner.data.consumers.petastorm.engine import obstacle
from sparkdl_runner.data.consumers.petastorm.unischema import UNISCHEMA_KEY

with_petastorm = pytest.mark.skipif(obstacle() is not None, reason="petastorm cannot run here")


class Booby:
    """A pickle that leaves a trace when somebody loads it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (exec, (f"open({str(self.trace)!r}, 'w')",))


def folder_with_pickle(file: Path, trace: Path) -> None:
    """Puts a folder in the file's place, as petastorm would read it: with a pickled schema."""
    file.rename(file.with_suffix(".was"))
    file.mkdir()
    shutil.copy(file.with_suffix(".was"), file / file.name)
    schema = pq.read_schema(file / file.name)
    pickled = schema.with_metadata({UNISCHEMA_KEY: pickle.dumps(Booby(trace))})
    pq.write_metadata(pickled, file / "_common_metadata")


def pipe(file: Path, trace: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def other_rows(file: Path, trace: Path) -> None:
    pq.write_table(numbered(9), file, row_group_size=3)


def nothing(file: Path, trace: Path) -> None:
    file.unlink()


@with_petastorm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("swap", [folder_with_pickle, pipe, other_rows, nothing])
def test_a_file_that_is_exchanged_after_the_check(tmp_path, swap):
    data = tmp_path / "data"
    write_groups(data, numbered(10), [[5, 5]])
    file, trace = data / "part-00000.parquet", tmp_path / "trace"
    converter = make_spark_converter(f"file://{data}")
    options = {"batch_size": 5, "num_epochs": 1, "engine": "petastorm"}
    with converter.make_torch_dataloader(**options) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 10
    with converter.make_torch_dataloader(**options) as loader:
        swap(file, trace)
        with pytest.raises(DatasetError, match=file.name):
            list(loader)
    assert not trace.exists()


@with_petastorm
@pytest.mark.filterwarnings("ignore")
def test_several_files_and_names_that_a_url_would_change(tmp_path):
    data = tmp_path / "a #1 50%?"
    write_groups(data, numbered(10), [[2], [3, 1], [4]])
    converter = make_spark_converter(f"file://{data}")
    with converter.make_torch_dataloader(
        batch_size=5, num_epochs=1, engine="petastorm", shuffle=False
    ) as loader:
        ids = [int(row) for batch in loader for row in batch["id"]]
    assert sorted(ids) == list(range(10))


def test_processes_whose_ports_take_pickles_become_threads(caplog):
    given = {"reader_pool_type": "process", "workers_count": 2}
    assert without_foreign_pickles(given) == {"reader_pool_type": "thread", "workers_count": 2}
    assert "any user of this host" in caplog.text
    assert without_foreign_pickles({"reader_pool_type": "dummy"}) == {"reader_pool_type": "dummy"}


def test_a_cache_that_others_may_write_is_refused(tmp_path):
    own, shared = tmp_path / "own", tmp_path / "shared"
    assert without_foreign_pickles({"cache_location": own}) == {"cache_location": own}
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(DatasetError, match="folder of your own"):
        without_foreign_pickles({"cache_location": str(shared)})
    if os.geteuid() == 0:
        os.chown(own, 65534, -1)
        with pytest.raises(DatasetError, match="folder of your own"):
            without_foreign_pickles({"cache_location": own})
