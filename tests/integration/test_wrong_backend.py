"""Code of the other library in a rank: what raises, and what is as free as ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparkdl_runner.launch.backends import get_backend

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

# What a worker does before the function is called, as rank 1, which serves nothing.
JOIN = """
import os, sys
os.environ["WORLD_SIZE"] = "{size}"
from sparkdl_runner.launch.backends import get_backend
get_backend("{backend}").join_in_worker(None)
"""
INIT = """
import horovod.torch as hvd
try:
    hvd.init()
    print("size", hvd.size())
except Exception as error:
    print(type(error).__name__, error)
"""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_horovod_code_on_the_torch_backend_trains_no_models_apart():
    said = run_python(JOIN.format(size=2, backend="torch") + INIT)
    assert said.startswith("RunnerError hvd.init() was called in a rank of the torch backend")
    assert "--backend horovod on its command line" in said
    # Also where something has imported it before.
    early = "import horovod.torch\n" + JOIN.format(size=2, backend="torch") + INIT
    assert run_python(early) == said


def test_a_single_rank_is_horovods_world_of_one():
    assert run_python(JOIN.format(size=1, backend="torch") + INIT) == "size 1"


def test_what_only_imports_horovod_finds_it_as_it_is():
    asked = """
import inspect, horovod.torch as hvd
from horovod.common import basics
print(hvd.is_initialized(), hvd.gloo_built(), "class HorovodBasics" in inspect.getsource(basics))
print("torch" in sys.modules, basics.__spec__.origin.endswith("horovod/common/basics.py"))
"""
    said = run_python(JOIN.format(size=2, backend="torch") + asked)
    assert said.split() == ["False", "True", "True", "True", "True"]


def test_a_rank_without_horovod_is_as_it_was():
    hidden = "sys.modules['horovod'] = None\ntry:\n    import horovod.torch\n"
    hidden += "except ImportError:\n    print('not there')\n"
    assert run_python(JOIN.format(size=2, backend="torch") + hidden) == "not there"


def test_torch_code_on_the_horovod_backend_is_told_of_the_other(monkeypatch):
    import torch.distributed as dist

    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match="MASTER_ADDR") as raised:
        dist.init_process_group("gloo")
    advice = get_backend("horovod").advice(raised.value)
    assert advice.startswith("init_process_group() was called in a rank of the horovod backend")
    assert "--backend torch on its command line" in advice
    assert get_backend("torch").advice(raised.value) == ""


class MuteError(ValueError):
    """Its words cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


class Mute:
    """So is what it looks like."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [ValueError("shape"), KeyError("MASTER_ADDR"), MuteError(3), ValueError("loss", Mute())],
)
def test_other_errors_get_no_advice(error):
    assert get_backend("horovod").advice(error) == ""
