"""Spare workers: the next call takes them, and its function sees what it would see without."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from processes import workers
from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.agent.spares import pool
from sparkdl_runner.agent.spares.pool import end_spares

# What no two runs have in common, with or without spares.
OF_ONE_RUN = (
    "SPARKDL_RUNNER_F",
    "SPARKDL_RUNNER_TESTS",
    "TORCHELASTIC_RUN_ID",
    "MASTER_PORT",
    "HOROVOD_GLOO_RENDEZVOUS",
)


def runner(spare_seconds: float = 60, backend: str = "horovod", ranks: int = 1):
    config = RunConfig(tracking=False, spare_seconds=spare_seconds)
    return DistributedRunner(num_proc=-ranks, backend=backend, config=config)


def pid() -> int:
    return os.getpid()


@pytest.fixture(autouse=True)
def _no_spares(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pool, "REST_SECONDS", 0.0)
    yield
    end_spares()


def waiting() -> set[int]:
    """The processes of the spares, of which there is at least one, or soon will be."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := {one.pid for one in psutil.Process().children() if one in workers()}:
            return found
        time.sleep(0.02)
    raise AssertionError("no spare was started")


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
        "orig_argv": [one for one in sys.orig_argv if not one[0].isdigit()],
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


@pytest.mark.parametrize("backend", ["horovod", "torch"])
def test_a_function_sees_what_it_sees_without_spares(backend: str) -> None:
    without = runner(0, backend).run(lambda: (pid(), seen()))[1]
    runner(60, backend).run(pid)
    held = waiting()
    process, with_spare = runner(60, backend).run(lambda: (pid(), seen()))
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
        process, found = runner().run(lambda: (pid(), variables()))
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
