"""A name service of HDFS: what is written and read goes on when its active NameNode is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from name_service import NAME, NameService
from test_yarn import why_not
from yarn import HEAD

import quick_java
from engines import ENGINES, ROOT

quick_java.use()
pytestmark = [pytest.mark.timeout(600)]
__all__ = ["why_not"]
SCRIPT = Path(__file__).with_name("on_hdfs.py")
# So long no NameNode answers: ZooKeeper and fencing take as long, or longer.
OUTAGE_SECONDS = 10


@pytest.fixture
def service(tmp_path: Path) -> Iterator[NameService]:
    service = NameService(tmp_path, ENGINES / "jars")
    try:
        service.start_hdfs()
        yield service
    finally:
        service.close()


def test_a_lost_namenode_costs_a_training_no_more_than_the_time(
    service: NameService, tmp_path: Path
) -> None:
    place = {"HADOOP_CONF_DIR": str(service.configuration), "PYTHONPATH": str(ROOT)}
    command = service.inside(HEAD, sys.executable, SCRIPT, "work_on_demand", f"hdfs://{NAME}/work")
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            command,
            env={**os.environ, **place},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as work,
    ):
        assert work.stdin is not None
        assert work.stdout is not None
        for number in (1, 2, 3):
            if number == 2:
                service.kill("first")
            work.stdin.write("again\n")
            work.stdin.flush()
            if number == 2:
                time.sleep(OUTAGE_SECONDS)
                assert work.poll() is None
                service.activate("second")
            # Java writes among the answers.
            answer = next((line for line in work.stdout if line.startswith("[")), None)
            assert answer is not None, (tmp_path / "errors").read_text()[-4000:]
            assert json.loads(answer) == [499500, number, 499500]
        work.stdin.close()
        assert work.wait(60) == 0, (tmp_path / "errors").read_text()[-4000:]
