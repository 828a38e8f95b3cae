"""Code of one allreduce library in a rank of the other: an error that says which to choose."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import NoReturn

from sparkdl_runner.base.importing import when_imported
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.backends import Backend
from sparkdl_runner.launch.backends.joined import HOROVODS_INIT, TENSORFLOWS_STRATEGY


def refuse_horovod(backend: Backend) -> None:
    """Makes ``hvd.init()`` raise in this process; importing Horovod stays as free as it was.

    In a rank of another backend it finds none of its variables, and would run as a single process:
    each rank would train a model of its own, and all would succeed. No variable makes its native
    code refuse, so its ``init`` is replaced.
    """
    when_imported(HOROVODS_INIT[0], functools.partial(_replace_init, backend))


def _replace_init(backend: Backend, basics: ModuleType) -> None:
    basics.HorovodBasics.init = functools.partial(_raise_at_init, backend)


def _raise_at_init(backend: Backend, *args: object, **kwargs: object) -> NoReturn:
    raise RunnerError(
        f"hvd.init() was called in a rank of the {backend.name} backend, in which Horovod knows of "
        "no other rank, so that each would train a model of its own: choose "
        f"{_choice_of('horovod')}, or call {backend.join_call} in its place."
    )


def refuse_tensorflow(backend: Backend) -> None:
    """Makes ``MultiWorkerMirroredStrategy()`` raise in this process, unless it has peers.

    Without ``TF_CONFIG`` it would run as a single process, and so each rank would train apart.
    """
    when_imported(TENSORFLOWS_STRATEGY[0], functools.partial(_replace_strategy, backend))


def _replace_strategy(backend: Backend, module: ModuleType) -> None:
    make = module.CollectiveAllReduceStrategy.__init__

    def make_with_peers(self: object, *args: object, **kwargs: object) -> None:
        if "TF_CONFIG" not in os.environ:
            raise RunnerError(
                f"MultiWorkerMirroredStrategy() was called in a rank of the {backend.name} "
                "backend, in which TensorFlow knows of no other rank, so that each would train a "
                f"model of its own: choose {_choice_of('tensorflow')}, or call "
                f"{backend.join_call} in its place."
            )
        make(self, *args, **kwargs)

    module.CollectiveAllReduceStrategy.__init__ = make_with_peers


def advice_on_torch(error: BaseException, backend: Backend) -> str:
    """Advice if torch misses its rendezvous, as in a rank of another backend; else ""."""
    # Only torch's own text: to format other objects would run the function's code.
    is_torchs = type(error) is ValueError and any(
        isinstance(argument, str) and "environment variable MASTER_" in argument
        for argument in error.args
    )
    if not is_torchs:
        return ""
    return (
        f"init_process_group() was called in a rank of the {backend.name} backend: "
        f"choose {_choice_of('torch')}, or call {backend.join_call} in its place."
    )


def _choice_of(backend: str) -> str:
    """How to choose a backend, in each place where that is possible."""
    return (
        f'the {backend} backend (DistributedRunner(backend="{backend}"), backend: {backend} '
        f"in a job's YAML, --backend {backend} on its command line)"
    )
