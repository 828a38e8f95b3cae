"""HDFS without Java: what needs no server. The rest is in tests/engines."""

from __future__ import annotations

import os

import pytest

from sparkdl_runner.base.hdfs import _told, open_hdfs


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
        (OSError("Connection refused"), OSError, "/a on HDFS: Connection refused"),
        (RuntimeError("anything"), OSError, "/a on HDFS: anything"),
    ],
)
def test_what_a_server_refuses_is_pythons_error_in_one_line(
    error: Exception, kind: type[OSError], told: str
) -> None:
    with pytest.raises(kind) as raised, _told("/a"):
        raise error
    assert type(raised.value) is kind
    assert str(raised.value) == told
