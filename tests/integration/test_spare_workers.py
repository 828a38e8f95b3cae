"""Workers forked from a template: what a function sees in them. Runs that go on by themselves."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from every_backend import EVERY_BACKEND
from processes import wait_until_gone, workers
from sparkdl_runner import (
    DistributedRunner,
    RunConfig,
    WorkerDiedError,
    WorkerFailedError,
    WorkerHungError,
    end_spare_workers,
)
from sparkdl_runner.launch.agent.spares.pool import end_spares

# Variables whose values differ between any two runs, also without spares.
OF_ONE_RUN = (
    "SPARKDL_RUNNER_F",
    "SPARKDL_RUNNER_TESTS",
    "TORCHELASTIC_RUN_ID",
    "MASTER_PORT",
    "HOROVOD_GLOO_RENDEZVOUS",
)


def runner(spare_seconds: float = 600, backend: str = "horovod", ranks: int = 1):
    config = RunConfig(tracking=False, spare_seconds=spare_seconds)
    return DistributedRunner(num_proc=-ranks, backend=backend, run_config=config)


def pid() -> int:
    return os.getpid()


@pytest.fixture(autouse=True)
def _no_spares() -> Iterator[None]:
    yield
    end_spares()


def waiting() -> set[int]:
    """The templates of this process, of which there is at least one, or soon will be."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if found := {one.pid for one in psutil.Process().children() if is_template(one)}:
            return found
        time.sleep(0.02)
    raise AssertionError("no template was started")


def is_template(process: psutil.Process) -> bool:
    try:
        return process in workers() and "--template-fd" in process.cmdline()
    except psutil.Error:  # It has just ended.
        return False


def parent() -> int:
    return os.getppid()


def seen():
    import builtins
    import gc
    import locale
    import os
    import random
    import re
    import resource
    import sys
    import threading

    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    files = [re.sub(r"\d+", "", os.readlink(one)) for one in links if os.path.lexists(one)]
    limits = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIM")}
    umask = os.umask(0)
    os.umask(umask)
    return {
        "environment": variables(),
        "modules": sorted(sys.modules),
        "path": sys.path,
        "argv": sys.argv[1:],
        "orig_argv": sys.orig_argv[:6],
        "main": sorted(vars(sys.modules["__main__"])),
        "builtins": sorted(vars(builtins)),
        "files": sorted(files),
        "folder": os.getcwd(),
        "umask": umask,
        "nice": os.nice(0),
        "limits": {
            name: resource.getrlimit(number)
            for name, number in limits.items()
            if name.startswith("RLIMIT_")
        },
        "groups": (os.getuid(), os.getgid(), os.getgroups()),
        "own group": os.getpgid(0) == os.getsid(0) == os.getpid(),
        "signals": [repr(signal.getsignal(one))[:30] for one in signal.valid_signals()],
        "masked": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "affinity": os.sched_getaffinity(0),
        "stdout": (sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.encoding),
        "stderr": (sys.stderr.line_buffering, sys.stderr.write_through, sys.stderr.encoding),
        "locale": locale.setlocale(locale.LC_ALL),
        "threads": sorted(one.name for one in threading.enumerate()),
        "main thread": threading.main_thread().native_id == os.getpid(),
        "collecting": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 1000),
        "gauss": random.getstate()[2],
        "hooks": (sys.excepthook.__module__, sys.settrace.__module__, len(sys.meta_path)),
        "recursion": sys.getrecursionlimit(),
        "random": torch_state(),
    }


def torch_state():
    import sys

    if "torch" not in sys.modules:
        return None
    import torch

    flags = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
    return (
        flags,
        torch.cuda.is_initialized(),
        torch.manual_seed(1).initial_seed(),
        torch.rand(4).tolist(),
    )


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_function_sees_what_it_sees_without_spares(backend: str) -> None:
    without = runner(0, backend).run(lambda: (parent(), seen()))[1]
    runner(backend=backend).run(pid)
    held = waiting()
    process, with_spare = runner(backend=backend).run(lambda: (parent(), seen()))
    assert process in held
    for name, value in without.items():
        assert with_spare[name] == value, name


VARIABLES = st.dictionaries(
    st.sampled_from(["MY_RATE", "MLFLOW_EXPERIMENT_ID", "KMP_BLOCKTIME", "NCCL_DEBUG", "A_TOKEN"]),
    st.sampled_from(["1", "2", "a b", "ä=\n"]),
)


@settings(
    max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(before=VARIABLES, after=VARIABLES)
def test_the_environment_is_that_of_the_call(light_ranks: None, before: dict, after: dict) -> None:
    with environment(before):
        runner().run(pid)
        held = waiting()
    with environment(after):
        process, found = runner().run(lambda: (parent(), variables()))
        # A run that wants no spares ends those that there are.
        assert runner(0).run(variables) == found
    acting = ("KMP_BLOCKTIME", "NCCL_DEBUG")
    assert (process in held) == all(before.get(one) == after.get(one) for one in acting)


@contextmanager
def environment(changes: dict) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setenv(name, value)
        yield


def variables():
    import os

    return [one for one in os.environ.items() if not one[0].startswith(OF_ONE_RUN)]


@pytest.mark.parametrize("spare_seconds", [600.0, None])
def test_a_restart_is_forked_from_what_has_imported_for_it(
    light_ranks: None, tmp_path: Path, spare_seconds: float | None
) -> None:
    first = tmp_path / "first"

    def train() -> tuple[int, float, float]:
        import os
        import random
        import signal

        import numpy as np

        seen = os.getppid(), random.random(), np.random.rand()
        if not first.exists():
            first.write_text(repr(seen))
            os.kill(os.getpid(), signal.SIGKILL)
        return seen

    config = RunConfig(
        tracking=False, spare_seconds=spare_seconds, max_restarts=1, restart_backoff_seconds=0
    )
    again = DistributedRunner(num_proc=-1, backend="horovod", run_config=config).run(train)
    before = ast.literal_eval(first.read_text())
    assert again[0] == before[0] != os.getpid()
    assert again[1] != before[1]
    assert again[2] != before[2]
    if spare_seconds:
        assert waiting() == {again[0]}  # For the next call, as after any.
    else:
        assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


def test_variables_that_an_import_changes_are_those_of_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(
        "import os\nos.environ['SET'] = 'by an import'\nos.environ.pop('GONE', None)\n"
        "raise ImportError\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("GONE", "soon")
    alone = dict(runner(0).run(variables))
    assert alone["SET"] == "by an import"
    assert "GONE" not in alone
    forked = runner().run(lambda: (parent(), variables()))
    assert dict(forked[1]) == alone
    assert forked[0] in waiting()
    monkeypatch.setenv("SET", "by hand")  # As if it was imported with that.
    assert dict(runner().run(variables)) == alone


def test_ranks_of_a_host_share_one_import(light_ranks: None) -> None:
    gang = runner(0, ranks=3)
    (template,) = set(gang.gather(parent))
    assert template != os.getpid()
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


@pytest.fixture
def slow_import(tmp_path: Path, light_ranks: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module that ranks import in torch's place. It may take its time."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "torch.py"


def test_a_run_that_is_cancelled_leaves_the_template_to_another(slow_import: Path) -> None:
    go = slow_import.with_name("go")
    slow_import.write_text(
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "print('imported once')\nraise ImportError\n"
    )
    mark = slow_import.with_name("mark")
    one, other = runner().submit(mark.touch), runner().submit(pid)
    waiting()
    assert one.cancel()
    assert wait([one], timeout=300).done
    go.touch()
    assert other.result(timeout=300) > 0
    assert not mark.exists()


def test_a_run_of_much_data_is_cancelled_while_its_template_imports(slow_import: Path) -> None:
    slow_import.write_text("import time\ntime.sleep(600)\n")
    one = runner(0, ranks=2).submit(len, b"x" * 5_000_000)  # More than its pipe holds.
    waiting()
    assert one.cancel()
    assert wait([one], timeout=300).done
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


def test_an_import_that_hangs_in_a_template_is_told_as_in_a_rank(slow_import: Path) -> None:
    slow_import.write_text("import time\ntime.sleep(600)\n")
    config = RunConfig(tracking=False, start_timeout_seconds=1)
    with pytest.raises(WorkerHungError, match=r"has not begun the function, for which it first"):
        DistributedRunner(num_proc=-2, backend="horovod", run_config=config).run(pid)
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


def test_the_last_words_of_an_import_are_those_of_the_rank(slow_import: Path) -> None:
    slow_import.write_text("import os\nos.write(2, b'no such driver\\n')\nos.abort()\n")
    with pytest.raises(WorkerDiedError, match=r"Last output of rank 0:\n  no such driver"):
        runner().run(pid)


def test_a_spare_ends_when_it_has_waited_long_enough(light_ranks: None) -> None:
    assert runner(0.5).run(parent) != os.getpid()
    assert wait_until_gone("sparkdl_runner.launch.worker")


def test_a_spare_whose_packages_have_changed_is_not_taken(
    light_ranks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    runner().run(pid)
    held = waiting()
    (tmp_path / "my_module.py").touch()  # A module of the user's own.
    assert runner().run(parent) in held
    held = waiting()
    (tmp_path / "other-1.0.dist-info").mkdir()
    assert runner().run(parent) not in held


def test_spares_end_with_the_process_that_holds_them(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "from sparkdl_runner import DistributedRunner, RunConfig\n"
        "config = RunConfig(tracking=False, spare_seconds=600)\n"
        "DistributedRunner(num_proc=-1, backend='horovod', run_config=config).run(os.getpid)\n"
        "time.sleep(1)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, script]).returncode == -signal.SIGKILL
    assert wait_until_gone("sparkdl_runner.launch.worker")


def test_the_next_call_on_spark_takes_spares(light_spark_ranks: None, spark) -> None:
    config = RunConfig(tracking=False, spare_seconds=600)
    gang = DistributedRunner(num_proc=2, backend="horovod", run_config=config)
    held = set(gang.gather(parent))
    assert set(gang.gather(parent)) <= held
    end_spare_workers()
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


def test_a_run_that_was_submitted_can_be_cancelled(light_ranks: None) -> None:
    gang = runner(0)
    value, error = gang.submit(pid), gang.submit(int, "no number")
    assert value.result() > 0
    assert value.progress is None
    assert isinstance(error.exception(), WorkerFailedError)
    assert not value.cancel()
    future = gang.submit(time.sleep, 600)
    while not workers():
        time.sleep(0.02)
    assert future.running()
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(timeout=300)
    assert future.cancelled()
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


def test_a_run_on_spark_can_be_cancelled_while_it_waits_for_slots(
    light_spark_ranks: None, spark
) -> None:
    gang = DistributedRunner(num_proc=2, backend="horovod", run_config=RunConfig(tracking=False))
    first = gang.submit(time.sleep, 600)
    deadline = time.monotonic() + 300
    while len(workers()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)  # Else the second may be the first to ask for slots.
    second = gang.submit(pid)
    for future in (second, first):
        time.sleep(1)
        assert not future.done()
        assert future.cancel()
        assert wait([future], timeout=300).done
        assert future.cancelled()
    assert gang.run(pid) > 0


BEFORE_A_RUN = """
import time
import psutil
from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.launch.driver.spark.spares import start_spares
from sparkdl_runner.jobs.spark.session import spark_session

def command():
    from pathlib import Path
    return Path("/proc/self/cmdline").read_text().split("\\0")

def is_worker(process):
    try:
        return "sparkdl_runner.launch.worker" in process.cmdline()
    except psutil.Error:  # It has just ended.
        return False

config = RunConfig(tracking=False)
with spark_session("spares", slots=1):
    start_spares(1, "torch", config, seconds=600)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if any(map(is_worker, psutil.Process().children(recursive=True))):
            break
        time.sleep(0.05)
    ran = DistributedRunner(num_proc=1, backend="torch", run_config=config).run(command)
    assert "--template-fd" in ran, ran
print("taken")
"""


@pytest.mark.one_lane
def test_spares_that_are_started_before_the_first_run_on_spark_are_taken_by_it() -> None:
    # Java's child processes begin with a signal of the C library ignored, and their first thread
    # changes that.
    done = subprocess.run([sys.executable, "-c", BEFORE_A_RUN], capture_output=True, text=True)
    assert done.stdout.endswith("taken\n"), done.stderr
