"""HDFS without Java: what needs no server. The rest is in tests/engines."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from sparkdl_runner.base.hdfs import (
    _PIECE_BYTES,
    _READ_BYTES,
    HdfsFile,
    _short_errors,
    _Told,
    open_hdfs,
)


@pytest.fixture(autouse=True)
def _no_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_USER_NAME", "HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_the_user_of_a_url_is_this_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    assert open_hdfs("hdfs://host:8020", "alice", {}).type_name == "py::hdfs"
    with pytest.raises(ValueError, match="names the user 'bob', and HADOOP_USER_NAME is 'alice'"):
        open_hdfs("hdfs://host:8020", "bob", {})
    monkeypatch.delenv("HADOOP_USER_NAME")
    open_hdfs("hdfs://host:8020", "bob", {})
    assert os.environ["HADOOP_USER_NAME"] == "bob"


def test_without_a_configuration_a_url_needs_a_host() -> None:
    with pytest.raises(OSError, match="name the host in the URL, or set HADOOP_CONF_DIR"):
        open_hdfs("hdfs://", "", {})


def test_a_mount_table_needs_a_fallback() -> None:
    link = {"fs.viewfs.mounttable.c.link./data": "hdfs://host:8020/data"}
    with pytest.raises(OSError, match=r"viewfs://c .*linkFallback in Hadoop's core-site.xml\.$"):
        open_hdfs("viewfs://c", "", link)
    fallback = {"fs.viewfs.mounttable.c.linkFallback": "hdfs://host:8020/"}
    assert open_hdfs("viewfs://c", "", {**link, **fallback}).type_name == "py::hdfs"


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (
            RuntimeError(
                'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: '
                'user=alice, inode=\\"/\\":root\\n\\tat org.apache.Server.run(Server.java:9)\\n")'
            ),
            PermissionError,
            '/a on HDFS: Permission denied: user=alice, inode="/":root',
        ),
        (
            FileNotFoundError("File does not exist: /a\n\tat org.apache.hadoop.Server"),
            FileNotFoundError,
            "/a on HDFS: File does not exist: /a",
        ),
        (
            RuntimeError('GSSAPIError(GssMajorCodes { routine_error: "GSS_S_NO_CRED" }, 1, "No")'),
            PermissionError,
            (
                "/a on HDFS: Kerberos is asked for, and this process has no ticket, and no token "
                "for the address as the URL has it. Run kinit, or where Hadoop gave tokens "
                "(HADOOP_TOKEN_FILE_LOCATION), name the NameNode by its IP address in the URL."
            ),
        ),
        (OSError("Connection refused"), OSError, "/a on HDFS: Connection refused"),
        (RuntimeError("anything"), OSError, "/a on HDFS: anything"),
    ],
)
def test_what_a_server_refuses_is_pythons_error_in_one_line(
    error: Exception, kind: type[OSError], told: str
) -> None:
    with pytest.raises(kind) as raised, _short_errors("/a"):
        raise error
    assert type(raised.value) is kind
    assert str(raised.value) == told


class _File:
    """A file of hdfs-native: what is slow there is missing here."""

    def __init__(self, content: bytes = b"") -> None:
        self.content, self.place = content, 0

    def __len__(self) -> int:
        return len(self.content)

    def tell(self) -> int:
        return self.place

    def seek(self, place: int, whence: int = os.SEEK_SET) -> None:
        self.place = place + (0, self.place, len(self.content))[whence]

    def read_range(self, offset: int, length: int) -> bytes:
        assert length <= _READ_BYTES
        assert offset + length <= len(self.content), "hdfs-native panics"
        return self.content[offset : offset + length]

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        assert len(data) <= _PIECE_BYTES
        self.content += data
        return len(data)

    def close(self) -> None:
        pass


def test_a_file_is_read_in_pieces() -> None:
    content = os.urandom(2 * _READ_BYTES + 100)
    file = HdfsFile(_Told(_File(content), "/a"))
    assert file.read(10) == content[:10]
    assert file.read_at(_READ_BYTES + 50, 33) == content[33 : _READ_BYTES + 83]
    file.seek(90)
    assert file.read() == content[90:]
    assert file.read(10) == b""


def test_a_file_is_read_on_into_memory() -> None:
    content = os.urandom(_READ_BYTES + 100)
    file = HdfsFile(_Told(_File(content), "/a"))
    memory = bytearray(_READ_BYTES + 50)
    assert file.readinto(memoryview(memory)[:50]) == 50
    assert file.readinto(memoryview(memory)[50:]) == _READ_BYTES
    assert memory == content[:-50]
    assert file.readinto(memoryview(memory)) == 50
    assert memory[:50] == content[-50:]
    assert file.readinto(memoryview(memory)) == 0


def test_memory_of_a_read_is_used_by_the_next() -> None:
    """In a process of its own: what a process freed before changes what its allocator keeps."""
    script = f"""
import resource
from sparkdl_runner.base.hdfs import open_hdfs
open_hdfs("hdfs://host:8020", "", {{}})
def read():  # The client has three copies of what it reads.
    copies = [b"x" * {_READ_BYTES} for _ in range(3)]
read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    pages_of_a_copy = _READ_BYTES // resource.getpagesize()
    assert int(done.stdout) < 3 * pages_of_a_copy, "as many new pages as one read has"


def test_threads_read_a_file_side_by_side() -> None:
    content = os.urandom(100)
    both = threading.Barrier(2)

    class Slow(_File):
        def read_range(self, offset: int, length: int) -> bytes:
            both.wait(60)
            return super().read_range(offset, length)

    file = HdfsFile(_Told(Slow(content), "/a"))
    memories = [memoryview(bytearray(50)), memoryview(bytearray(50))]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(file.fill, (0, 80), memories))
    assert found == [50, 20]
    assert bytes(memories[0]) == content[:50]
    assert bytes(memories[1][:20]) == content[80:]
    assert file.fill(200, memories[0]) == 0, "the file ends before"


@pytest.mark.parametrize("size", [0, 5, _PIECE_BYTES, 2 * _PIECE_BYTES + 5])
def test_any_memory_is_written_as_bytes_in_pieces(size: int) -> None:
    file, content = _File(), os.urandom(size)
    for memory in (content, memoryview(content), pa.py_buffer(content)):
        with pa.PythonFile(_Told(file, "/a"), mode="w") as stream:
            stream.write(memory)
    assert file.content == 3 * content
