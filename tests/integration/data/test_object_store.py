"""A data set on a real S3-compatible server, whose credentials are seen nowhere."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from sparkdl_runner.data import (
    DatasetError,
    NoManifestError,
    SparkDatasetConverter,
    make_spark_converter,
    sweep_leftovers,
)
from sparkdl_runner.data.convert.replacing import replace
from sparkdl_runner.data.dataset import leftovers
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.leftovers import Owner
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, Manifest

pytestmark = pytest.mark.integration

ACCESS_KEY, SECRET_KEY = "AKIA0TESTS0ONLY", "not+a+real+secret/but/looked/for"
ROWS = 100


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3-compatible server in this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"{host}:{port}"
    running.stop()


@pytest.fixture
def options(server) -> dict:
    """What this process needs to reach the server, as pyarrow.fs.S3FileSystem takes it."""
    return {
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "endpoint_override": server,
        "scheme": "http",
        "region": "us-east-1",
        "request_timeout": 120,  # The server's threads may be held on a busy machine.
    }


@pytest.fixture
def bucket(options, request) -> tuple[fs.FileSystem, str]:
    """An empty bucket of its own for each test."""
    name = "b" + str(abs(hash(request.node.name)))
    filesystem = fs.S3FileSystem(**options, allow_bucket_creation=True)
    filesystem.create_dir(name)
    return filesystem, name


def convert_and_upload(spark, bucket) -> tuple[str, str]:
    """Converts locally and copies the directory, as a copy job between storages would."""
    filesystem, name = bucket
    local = make_spark_converter(spark.range(0, ROWS, 1, 3).selectExpr("id", "id / 2 as half"))
    source = Path(local.cache_dir_url.removeprefix("file://"))
    target = f"{name}/cache/{source.name}"
    for path in source.iterdir():
        if not path.name.startswith("."):
            with filesystem.open_output_stream(f"{target}/{path.name}") as stream:
                stream.write(path.read_bytes())
    return f"s3a://{target}", target


@pytest.mark.usefixtures("cache_dir")
def test_a_rank_reads_from_s3_with_its_own_credentials(spark, bucket, options, tmp_path, caplog):
    with caplog.at_level(logging.DEBUG):
        url, target = convert_and_upload(spark, bucket)
        converter = make_spark_converter(url, storage_options=options)
        with converter.make_torch_dataloader(
            batch_size=10, num_epochs=1, storage_options=options
        ) as loader:
            ids = sorted(i for batch in loader for i in batch["id"].tolist())
        assert ids == list(range(ROWS))

        pickled = pickle.dumps(converter)
        (tmp_path / "converter.pickle").write_bytes(pickled)
        code = """
import pickle, sys
converter = pickle.load(open(sys.argv[1], "rb"))
with converter.make_torch_dataloader(batch_size=10, num_epochs=1) as loader:
    print(sum(batch["id"].sum().item() for batch in loader))
"""
        process = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "converter.pickle")],
            env={
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_ENDPOINT_URL": f"http://{options['endpoint_override']}",
                "AWS_DEFAULT_REGION": "us-east-1",
                "PYTHONPATH": ":".join(sys.path),
            },
            capture_output=True,
            text=True,
        )
    assert process.stdout.strip() == str(sum(range(ROWS))), process.stderr
    filesystem, _ = bucket
    with filesystem.open_input_stream(f"{target}/{MANIFEST_NAME}") as stream:
        manifest = stream.read()
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret.encode() not in pickled + manifest
        assert secret not in caplog.text + process.stdout + process.stderr + repr(converter)


@pytest.mark.usefixtures("cache_dir")
def test_damage_on_s3_is_found_when_the_file_is_read(spark, bucket, options):
    url, target = convert_and_upload(spark, bucket)
    filesystem, _ = bucket
    converter = make_spark_converter(url, storage_options=options)
    name = converter.file_urls[-1].rpartition("/")[2]
    with filesystem.open_input_stream(f"{target}/{name}") as stream:
        content = stream.read()
    with filesystem.open_output_stream(f"{target}/{name}") as stream:
        stream.write(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with (
        pytest.raises(DatasetError, match=name),
        converter.make_torch_dataloader(num_epochs=1, storage_options=options) as loader,
    ):
        list(loader)
    filesystem.delete_file(f"{target}/{MANIFEST_NAME}")
    with (
        pytest.raises(NoManifestError),
        converter.make_torch_dataloader(storage_options=options),
    ):
        pass


def test_wrong_credentials_are_not_shown(bucket, options):
    _, name = bucket
    closed = {**options, "endpoint_override": "127.0.0.1:9"}
    with pytest.raises(OSError) as caught:  # noqa: PT011 - any words, but for these
        make_spark_converter(f"s3://{name}/data", storage_options=closed)
    assert SECRET_KEY not in str(caught.value)


def test_marked_directories_on_s3(bucket, options, monkeypatch):
    filesystem, name = bucket
    parent = f"s3a://{name}/cache"
    monkeypatch.setattr(leftovers.atexit, "register", lambda *args: None)
    url = leftovers.make_marked_directory(parent, "local-1", options)
    filesystem.create_dir(f"{name}/cache/sparkdl_runner-of-someone-else")
    assert sweep_leftovers(parent, storage_options=options) == [], "its maker is this process"
    monkeypatch.setattr(leftovers.Owner, "is_gone", lambda self: True)
    assert sweep_leftovers(parent, storage_options=options) == [url]
    left = filesystem.get_file_info(fs.FileSelector(f"{name}/cache"))
    assert [info.base_name for info in left] == ["sparkdl_runner-of-someone-else"]


def test_a_directory_that_is_not_there(bucket, options):
    _, name = bucket
    with pytest.raises(NoManifestError, match="There is no directory s3://"):
        make_spark_converter(f"s3://{name}/nothing", storage_options=options)
    gone = SparkDatasetConverter(f"s3://{name}/gone", [], 0)
    with (
        pytest.raises(NoManifestError, match="is gone"),
        gone.make_torch_dataloader(storage_options=options),
    ):
        pass


def test_a_conversion_on_s3_is_overwritten_by_its_manifest(bucket, options):
    filesystem, name = bucket
    folder = f"{name}/orders"

    def files() -> list[str]:
        found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        return sorted(info.path for info in found if info.type == fs.FileType.File)

    def ids() -> list[int]:
        converter = make_spark_converter(f"s3://{folder}", storage_options=options)
        with converter.make_torch_dataloader(
            batch_size=1, num_epochs=1, storage_options=options
        ) as loader:
            return sorted(batch["id"].item() for batch in loader)

    def convert(rows: int, error: BaseException | None = None) -> None:
        def write(subfolder: str) -> Manifest:
            with filesystem.open_output_stream(f"{folder}/{subfolder}part-0.parquet") as stream:
                pq.write_table(pa.table({"id": list(range(rows))}), stream)
            if error is not None:
                raise error
            return describe_parquet(filesystem, folder, [f"{subfolder}part-0.parquet"])

        replace(filesystem, folder, "local-1", write)

    with pytest.raises(KeyboardInterrupt):
        convert(3, KeyboardInterrupt())
    assert filesystem.get_file_info(folder).type == fs.FileType.NotFound
    convert(3)
    before = make_spark_converter(f"s3://{folder}", storage_options=options)
    kept = files()
    with pytest.raises(OSError, match="the network is gone"):
        convert(4, OSError("the network is gone"))
    assert files() == kept
    assert ids() == list(range(3))

    left = f"{folder}/_conversion-left"
    for owner, stays in ((Owner.this_process("x", "x"), True), (None, False)):
        with filesystem.open_output_stream(f"{left}/files/part-0.parquet") as stream:
            stream.write(b"half")
        if owner is not None:
            with filesystem.open_output_stream(f"{left}/{leftovers.MARKER_NAME}") as stream:
                stream.write(json.dumps(vars(owner)).encode())
        else:
            filesystem.delete_file(f"{left}/{leftovers.MARKER_NAME}")
        convert(5)
        assert ids() == list(range(5))
        assert any(path.startswith(left) for path in files()) == stays
    assert [path.rpartition("/")[2] for path in files()] == ["part-0.parquet", MANIFEST_NAME]
    with (
        pytest.raises(DatasetError, match="was overwritten by another one"),
        before.make_torch_dataloader(storage_options=options),
    ):
        pass
