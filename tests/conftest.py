"""What holds for every test: it leaves no thread, no environment variable, no choice in MLflow."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mlflow_stores
import processes  # noqa: F401  # marks what the tests start
from sparkdl_runner.base.private_folder import user_name

# They read scripts, settings and pages, or look at what meets neither Spark nor Arrow nor NumPy:
# processes, messages and backends.
SAME_IN_BOTH_LANES = {
    Path(__file__).parent / "unit" / folder
    for folder in (
        *("cli", "conf", "docs", "rank"),
        *("launch/agent", "launch/backends", "launch/wire", "launch/worker"),
    )
}
# Whole programs as people start them, and whole trainings: some take minutes on a slow machine, so
# they run after all else.
WHOLE_PROGRAMS = {
    Path(__file__).parent / "engines",
    Path(__file__).parent / "system",
    *(
        Path(__file__).parent / "integration" / name
        for name in (
            *("conf", "doctor", "estimator", "jobs", "notebooks", "standalone", "training"),
            *("local_cluster/test_gang_of_tasks.py", "local_cluster/test_growing_back.py"),
            *("local_cluster/test_ranks_of_a_task.py", "local_cluster/test_taken_away.py"),
            *("local_master/test_migration.py", "local_master/test_models.py"),
            *(
                "test_benchmark.py",
                "test_campaigns.py",
                "test_digits.py",
                "test_docs.py",
                "test_frameworks.py",
            ),
            *("test_horovod_estimators.py", "test_mixed_faults.py", "test_readme.py"),
        )
    ),
}
# Of their files, those that one process needs longest for: they begin first, so that nothing waits
# for one alone at the end.
LONGEST = ("test_docs.py", "test_benchmark.py", "test_whole_system.py", "test_notebooks.py")
# Tests of a folder share a cluster and a packed environment, whose making takes minutes.
CLUSTERS = {Path(__file__).parent / "engines", Path(__file__).parent / "system"}
# pip's pyspark 3.5 comes without a server of Spark Connect.
NEEDS_A_SERVER = Path(__file__).parent / "integration" / "connect"
IN_CLASSIC_LANE = importlib.util.find_spec("petastorm") is not None

# No test speaks to the server of whoever runs it.
os.environ.pop("MLFLOW_TRACKING_URI", None)
# Nor does MLflow tell its makers of the tests, for which it would set a variable of its own.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# torch would set this itself when it first exports a network.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"torchinductor_{user_name()}")
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks whole programs, and runs in one lane what the other one's packages cannot change.

    The longest files come first.

    With $SPARKDL_TEST_SHARED each whole program that could run in both lanes runs in one of them:
    all of them in both would take as long as all the rest.
    """
    for item in items:
        if not WHOLE_PROGRAMS.isdisjoint(_with_parents(item.path)):
            item.add_marker("system")
            if os.environ.get("SPARKDL_TEST_SHARED") and not _is_the_share_of_this_lane(item):
                reason = "the other lane has it: make system runs all in both"
                item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if IN_CLASSIC_LANE:
        return
    for item in items:
        is_same = not SAME_IN_BOTH_LANES.isdisjoint(_with_parents(item.path))
        if is_same or item.get_closest_marker("one_lane"):
            item.add_marker(pytest.mark.skip(reason="the same in the classic lane"))


@functools.cache
def _with_parents(path: Path) -> frozenset[Path]:
    """Thousands of tests are in some hundred files."""
    return frozenset((path, *path.parents))


def _is_the_share_of_this_lane(item: pytest.Item) -> bool:
    """Whether a whole program is tested in this lane: by its name, so always in the same one."""
    if NEEDS_A_SERVER in item.path.parents:
        return not IN_CLASSIC_LANE
    is_in_one = item.get_closest_marker("one_lane") or item.path.parent in CLUSTERS
    return bool(is_in_one or zlib.crc32(item.nodeid.encode()) % 2) == IN_CLASSIC_LANE


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begins no whole program after $SPARKDL_TEST_SYSTEM_UNTIL, in seconds since 1970."""
    until = float(os.environ.get("SPARKDL_TEST_SYSTEM_UNTIL", "inf"))
    if time.time() > until and item.get_closest_marker("system"):
        pytest.skip(f"no time was left: no whole program begins after {time.ctime(until)}")


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector need not look at it again in each test."""
    gc.collect()
    gc.freeze()


# The owner of each of these threads joins it. Other threads may outlive their owner by a moment:
# that of a call that has returned, or of a spare whose process a call has taken.
WAITED_FOR = {
    *("sparkdl-checkpoint", "sparkdl-decommissions", "sparkdl-growth", "sparkdl-start"),
    *("sparkdl-time-use", "sparkdl-watch"),
    *("sparkdl-exits", "sparkdl-log-channel", "sparkdl-store-relay"),
    *("sparkdl-rendezvous", "sparkdl-rendezvous-cache"),
}
PATIENCE_SECONDS = 120.0
_told: set[threading.Thread] = set()
"""Threads that an earlier test has left, and has failed for."""


def _threads() -> set[str]:
    # The one that renews leases stays with the process's cache directory, to its end.
    found = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("sparkdl-") and thread.name != "sparkdl-leases"
    ]
    deadline = time.monotonic() + PATIENCE_SECONDS
    for thread in set(found) - _told:
        if thread.name not in WAITED_FOR:
            thread.join(max(0.0, deadline - time.monotonic()))
    left = {thread for thread in found if thread.name in WAITED_FOR or thread.is_alive()} - _told
    _told.update(left)
    return {thread.name for thread in left}


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    environment = dict(os.environ)
    yield
    assert not _threads()
    changed = {
        name
        for name in environment.keys() | os.environ.keys()
        if environment.get(name) != os.environ.get(name)
        and not name.startswith(("PYTEST", "SPARK_"))
    }
    assert not changed, f"environment variables changed: {changed}"


@pytest.fixture(autouse=True)
def _chooses_nothing_in_mlflow_for_others(_leaves_nothing_behind: None) -> Iterator[None]:
    """A server, an experiment or a run that one test chose is no other test's."""
    yield
    # Where nothing imported it, there is nothing to undo; to import it takes seconds.
    if (mlflow := sys.modules.get("mlflow")) is None:
        return
    from mlflow.tracking import fluent

    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(None)
    fluent._active_experiment_id = None


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Puts an MLflow store into a folder, and returns its URI."""
    folder = tmp_path_factory.getbasetemp()
    # The processes of one session have folders of their own beside one another.
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def put(folder: Path) -> str:
        return mlflow_stores.copy_empty(mlflow_stores.make_empty(shared), folder)

    return put
