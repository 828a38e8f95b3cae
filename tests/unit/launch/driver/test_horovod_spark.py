"""``horovod.spark.run`` and ``run_elastic``: what they ask for, and where lines of ranks go."""

from __future__ import annotations

import io
import os
import re
import sys
from types import SimpleNamespace

import pytest

from sparkdl_runner import RunConfig
from sparkdl_runner.horovod import output_streams, spark
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")], backend="horovod"
)[0]


@pytest.fixture
def asked(monkeypatch):
    """The arguments with which the backend is made."""
    found = []

    class Backend:
        def __init__(self, num_proc, *, run_config=None, **options):
            config = run_config or RunConfig()
            folder = config.elastic_state_url
            found.append(SimpleNamespace(num_proc=num_proc, config=config, **options))
            assert folder is None or os.path.isdir(folder.removeprefix("file://"))

        def run(self, fn, args, kwargs):
            return [fn(*args, **(kwargs or {}))]

    monkeypatch.setattr(spark, "SparkBackend", Backend)
    monkeypatch.setattr(spark, "running_context", lambda: None)
    monkeypatch.delenv("HOROVOD_SPARK_START_TIMEOUT", raising=False)
    return found


@pytest.fixture
def context(asked, monkeypatch):
    """A Spark application that is not there."""
    running = SimpleNamespace(master="local[2]", _conf={})
    monkeypatch.setattr(spark, "running_context", lambda: running)
    return running


def test_how_many_ranks_there_are(asked, context):
    assert spark.run(max, (1, 2), {"key": abs}, num_proc=3) == [2]
    spark.run(list)
    context._conf["spark.default.parallelism"] = "5"
    spark.run(list)
    assert [one.num_proc for one in asked] == [3, 0, 5]


def test_the_variable_of_horovod_says_how_long_a_start_may_take(asked, monkeypatch):
    spark.run(list)
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "20")
    spark.run(list)
    spark.run(list, start_timeout=30)
    assert [one.start_timeout for one in asked] == [None, 20, 30]


def test_an_elastic_run_has_least_most_and_resets(asked):
    spark.run_elastic(list, num_proc=4)
    spark.run_elastic(
        list, num_proc=4, min_num_proc=2, max_num_proc=8, reset_limit=3, elastic_timeout=7
    )
    with pytest.warns(DeprecationWarning, match="min_np is deprecated: use min_num_proc"):
        spark.run_elastic(list, min_np=1, max_num_proc=6, start_timeout=9)
    assert [(one.config.min_num_proc, one.num_proc) for one in asked] == [(4, 4), (2, 8), (1, 6)]
    assert [one.config.max_restarts for one in asked] == [1000, 3, 1000]
    assert [one.config.slot_wait_seconds for one in asked] == [60, 7, 9]
    assert asked[1].config.rendezvous_timeout_seconds == 7
    assert asked[2].config.start_timeout_seconds == 9


def test_one_host_keeps_the_state_in_a_folder_that_is_deleted(asked, context, tmp_path):
    spark.run_elastic(list, num_proc=2)
    folder = asked[0].config.elastic_state_url.removeprefix("file://")
    assert not os.path.exists(folder)
    context.master = "spark://host:7077"
    spark.run_elastic(list, num_proc=2)
    assert asked[1].config.elastic_state_url is None
    context.master = "local[2]"
    mine = RunConfig(elastic_state_url=str(tmp_path))
    spark.run_elastic(list, num_proc=2, run_config=mine)
    assert asked[2].config.elastic_state_url == mine.elastic_state_url
    assert tmp_path.exists()


def test_streams_get_the_lines_as_horovod_writes_them(capsys):
    out, err = io.StringIO(), io.StringIO()
    streams = output_streams.OutputStreams(out, err, with_time=False)
    assert streams.printed(WORLD, ["a", "<stderr>:b\x1b[2J"])
    assert (out.getvalue(), err.getvalue()) == ("[0]<stdout>:a\n", "[0]<stderr>:b\n")
    streams = output_streams.OutputStreams(None, err, with_time=True)
    streams.printed(WORLD, ["c"])
    assert re.fullmatch(r"\w{3} \w{3} .* \d{4}\[0\]<stdout>:c\n", capsys.readouterr().out)
    err.close()
    streams.printed(WORLD, ["<stderr>:nobody takes it"])


def test_lines_of_stderr_are_marked_when_they_are_whole(capsys):
    def function(value):
        print("one", end="", file=sys.stderr)
        print(" two\nthree", file=sys.stderr)
        print("out")
        print("rest", end="", file=sys.stderr)
        return value

    assert output_streams.with_marked_errors(function)(7) == 7
    shown = capsys.readouterr()
    assert shown.err == "<stderr>:one two\n<stderr>:three\n<stderr>:rest\n"
    assert shown.out == "out\n"
