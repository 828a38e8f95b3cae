"""URLs: one way to write them, no credentials in them, and a filesystem for each kind."""

from __future__ import annotations

import pickle
import sys

import pytest
from pyarrow import fs

from sparkdl_runner.base import filesystem


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///a/b", "file:///a/b"),
        ("file:/a/b/", "file:///a/b"),
        ("file://localhost/a/b", "file:///a/b"),
        ("file:///a b/#1?x", "file:///a b/#1?x"),
        ("/Volumes/catalog/schema/volume/x/", "dbfs:/Volumes/catalog/schema/volume/x"),
        ("dbfs:/Volumes/c/s/v", "dbfs:/Volumes/c/s/v"),
        ("dbfs:///tmp/x", "dbfs:/tmp/x"),
        ("/dbfs/tmp/x", "file:///dbfs/tmp/x"),
        ("s3a://bucket/a/b/", "s3a://bucket/a/b"),
        ("hdfs://user@host:9000/a", "hdfs://user@host:9000/a"),
        ("hdfs:///a", "hdfs:///a"),
        (
            "abfss://container@account.dfs.core.windows.net/a",
            "abfss://container@account.dfs.core.windows.net/a",
        ),
    ],
)
def test_one_way_to_write_a_url(url, expected):
    assert filesystem.normalize_url(url) == expected
    assert filesystem.normalize_url(expected) == expected


@pytest.mark.parametrize("url", ["/tmp/x", "relative/path", "", "~/x"])
def test_a_scheme_is_needed(url):
    with pytest.raises(ValueError, match=r"has no scheme: write file:///"):
        filesystem.normalize_url(url)


@pytest.mark.parametrize("url", ["file:relative", "file://host/share", "dbfs:x"])
def test_a_local_path_is_absolute(url):
    with pytest.raises(ValueError, match="names no absolute path"):
        filesystem.normalize_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:s3cr3t@bucket/x",
        "s3a://s3cr3t@bucket/x",
        "hdfs://user:s3cr3t@host/x",
        "s3://bucket/x?access_key=s3cr3t",
        "abfss://c@a.dfs.core.windows.net/x?sv=1&sig=s3cr3t",
        "gs://bucket/x?token=s3cr3t",
        "s3://bucket/x?X-Amz-Signature=s3cr3t",
        "gs://bucket/x?Signature=s3cr3t",
        "s3://bucket/x#token=s3cr3t",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    with pytest.raises(ValueError, match="holds credentials") as caught:
        filesystem.normalize_url(url)
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in filesystem.redact(url)


def test_a_url_without_secrets_is_shown_whole():
    for url in ("file:///a/b?c#d", "s3a://bucket/x", "abfss://c@a.dfs.core.windows.net/x"):
        assert filesystem.redact(url) == url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a/b", "/a/b"),
        ("dbfs:/tmp/x", "/dbfs/tmp/x"),
        ("dbfs:/Volumes/c/s/v", "/Volumes/c/s/v"),
        ("/Volumes/c/s/v", "/Volumes/c/s/v"),
        ("s3a://bucket/x", None),
    ],
)
def test_what_this_machine_sees(url, path):
    assert filesystem.local_path(url) == path
    if path is not None:
        opened, directory = filesystem.open_filesystem(url)
        assert isinstance(opened, fs.LocalFileSystem)
        assert directory == path


class FakeS3:
    def __init__(self, **options):
        self.options = options


@pytest.fixture
def s3(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fs, "S3FileSystem", FakeS3)
    monkeypatch.setattr(fs, "resolve_s3_region", lambda bucket: f"region-of-{bucket}")
    return monkeypatch


def test_s3_without_settings_asks_for_the_buckets_region(s3):
    opened, path = filesystem.open_filesystem("s3a://bucket/a")
    assert (opened.options, path) == ({"region": "region-of-bucket"}, "bucket/a")


def test_s3_from_the_environment_and_from_options(s3):
    s3.setenv("AWS_ENDPOINT_URL", "http://general:1")
    s3.setenv("AWS_ENDPOINT_URL_S3", "http://local:2")
    s3.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    opened, _ = filesystem.open_filesystem("s3://bucket")
    assert opened.options == {"endpoint_override": "http://local:2", "region": "eu-west-1"}
    opened, _ = filesystem.open_filesystem("s3n://bucket", {"region": "x", "access_key": "k"})
    assert opened.options["region"] == "x"
    assert opened.options["access_key"] == "k"


def test_azure_by_pyarrow_where_it_can(monkeypatch):
    monkeypatch.setattr(fs, "AzureFileSystem", FakeS3, raising=False)
    opened, path = filesystem.open_filesystem("abfss://box@account.dfs.core.windows.net/a/b")
    assert (opened.options, path) == ({"account_name": "account"}, "box/a/b")


def test_azure_names_the_package_that_is_missing(monkeypatch):
    monkeypatch.delattr(fs, "AzureFileSystem", raising=False)
    with pytest.raises(ImportError, match="pip install adlfs"):
        filesystem.open_filesystem("abfss://box@account.dfs.core.windows.net/a")


def test_google(monkeypatch):
    monkeypatch.setattr(fs, "GcsFileSystem", FakeS3)
    opened, path = filesystem.open_filesystem("gs://bucket/a", {"anonymous": True})
    assert (opened.options, path) == ({"anonymous": True}, "bucket/a")


@pytest.fixture
def no_library(monkeypatch):
    """Hadoop's native library cannot be loaded; returns how it was asked for."""
    seen = []

    def refuse(*args, **options):
        seen.append((args, options))
        raise OSError("cannot load libhdfs")

    monkeypatch.setattr(fs, "HadoopFileSystem", refuse)
    return seen


def test_hadoop_says_what_to_install(monkeypatch, no_library):
    monkeypatch.setitem(sys.modules, "sparkdl_runner.base.hdfs", None)
    for url in ("hdfs:///a", "hdfs://me@host:9000/a", "viewfs://cluster/a"):
        with pytest.raises(ImportError, match=r"pip install 'sparkdl-runner\[hdfs\]'"):
            filesystem.open_filesystem(url)
    assert no_library == [
        (("default", 0), {"user": None}),
        (("host", 9000), {"user": "me"}),
        (("viewfs://cluster", 0), {"user": None}),
    ]


def test_hdfs_without_hadoops_library(monkeypatch, no_library):
    from sparkdl_runner.base import hdfs

    opened = []
    monkeypatch.setattr(hdfs, "open_hdfs", lambda *asked: opened.append(asked))
    options = {"extra_conf": {"dfs.client.use.datanode.hostname": "true"}}
    assert filesystem.open_filesystem("hdfs://me@host:9000/a", options)[1] == "/a"
    assert filesystem.open_filesystem("viewfs://cluster/a/b")[1] == "/a/b"
    assert opened == [
        ("hdfs://host:9000", "me", options["extra_conf"]),
        ("viewfs://cluster", "", {}),
    ]
    with pytest.raises(
        ValueError, match=r"hdfs-native here, which takes none of \['replication'\]"
    ):
        filesystem.open_filesystem("hdfs://host/a", {"replication": 2})


def test_anything_else_that_fsspec_knows():
    opened, path = filesystem.open_filesystem("memory://somewhere/a")
    opened.create_dir(path)
    with opened.open_output_stream(f"{path}/file") as stream:
        stream.write(b"content")
    with opened.open_input_stream(f"{path}/file") as stream:
        assert stream.read() == b"content"


def test_a_kind_of_storage_that_nobody_knows():
    with pytest.raises(ValueError, match="no kind of storage"):
        filesystem.open_filesystem("gopher://host/a")


def test_only_urls_are_pickled():
    from sparkdl_runner.data import SparkDatasetConverter

    converter = SparkDatasetConverter("s3a://b/c", ["s3a://b/c/f"], 3, delete=lambda: None)
    copy = pickle.loads(pickle.dumps(converter))
    assert (copy.cache_dir_url, copy.file_urls, len(copy)) == ("s3a://b/c", ["s3a://b/c/f"], 3)
    copy.delete()  # Does nothing: what it copies may be in use.
