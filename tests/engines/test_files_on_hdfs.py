"""HDFS without Hadoop's native library: what is kept there, and what is told when it cannot be."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_yarn import why_not
from yarn import ADDRESSES, HEAD, Yarn, write_properties

import quick_java
from engines import ENGINES, ROOT

quick_java.use()
pytestmark = [pytest.mark.timeout(600)]
__all__ = ["why_not"]
Run = Callable[..., dict]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Run]:
    """Runs a function of ``on_hdfs.py`` on the machine of an HDFS, and returns what it returned."""
    yarn = Yarn(tmp_path_factory.mktemp("hdfs"), ENGINES / "jars")

    def call(function: str, *arguments: str, **variables: str) -> dict:
        place = {"HADOOP_CONF_DIR": str(yarn.configuration), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            yarn.inside(HEAD, sys.executable, SCRIPT, function, *arguments),
            env={**os.environ, **place, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    try:
        yarn.start_hdfs()
        yield call
    finally:
        yarn.close()


SCRIPT = Path(__file__).with_name("on_hdfs.py")
URL = f"hdfs://{ADDRESSES[HEAD]}:8020"


@pytest.mark.parametrize("url", [URL, "hdfs://", f"hdfs://{getpass.getuser()}@{HEAD}"])
def test_files_are_written_listed_replaced_and_deleted(run, url):
    assert run("keep_files", f"{url}/files") == {
        "replaced": "new",
        "listed": ["/files/a", "/files/a/b", "/files/a/b/c.txt"],
        "left": [],
    }


def test_a_training_is_saved_and_goes_on(run):
    assert run("save_and_restore", f"{URL}/checkpoints") == {"step": 3, "is_equal": True}


def test_a_killed_save_leaves_a_checkpoint_that_is_whole(run):
    assert run("kill_while_saving", f"{URL}/killed", "5") == {"kills": 5, "damaged": 0}


def test_a_conversion_is_read_and_replaced(run):
    found = run("convert_twice", f"{URL}/conversions/rows")
    assert found == {"sums": [4950, 19900], "folders": 1}


@pytest.fixture
def names(tmp_path: Path) -> dict[str, str]:
    """Hadoop's configuration of a name service, one of whose NameNodes is gone, and of mounts."""
    package = "org.apache.hadoop.hdfs.server.namenode.ha"
    table = "fs.viewfs.mounttable.cluster"
    write_properties(
        tmp_path / "core-site.xml",
        {
            "fs.defaultFS": "viewfs://cluster",
            f"{table}.link./data": "hdfs://pair/mounted",
            f"{table}.linkFallback": "hdfs://pair/",
        },
    )
    write_properties(
        tmp_path / "hdfs-site.xml",
        {
            "dfs.nameservices": "pair",
            "dfs.ha.namenodes.pair": "gone,there",
            "dfs.namenode.rpc-address.pair.gone": f"{ADDRESSES[HEAD]}:9",
            "dfs.namenode.rpc-address.pair.there": f"{HEAD}:8020",
            "dfs.client.failover.proxy.provider.pair": f"{package}.ConfiguredFailoverProxyProvider",
        },
    )
    return {"HADOOP_CONF_DIR": str(tmp_path)}


@pytest.mark.parametrize("url", ["hdfs://pair/b", "viewfs://cluster/data/c", "viewfs:///data/d"])
def test_name_services_and_mounts_of_the_configuration(run, names, url):
    assert run("keep_files", f"{url}/files", **names)["replaced"] == "new"
    found = run("save_and_restore", f"{url}/checkpoints", **names)
    assert found == {"step": 3, "is_equal": True}
    found = run("convert_twice", f"{url}/rows", **names)
    assert found == {"sums": [4950, 19900], "folders": 1}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("hdfs://nowhere:8020/a", "/a on HDFS: failed to lookup address"),
        (f"hdfs://{ADDRESSES[HEAD]}:9/a", "/a on HDFS: Connection refused"),
        (f"hdfs://mallory@{ADDRESSES[HEAD]}:8020/a", "/a on HDFS: Permission denied: user=mallory"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(run, url, told):
    found = run("fail", url)
    assert found["error"].startswith(told)
    assert "\n" not in found["error"]
    assert found["seconds"] < 200
