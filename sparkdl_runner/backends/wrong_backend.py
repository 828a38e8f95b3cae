"""Code of one allreduce library in a rank of the other: an error that says which to choose."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, NoReturn

from sparkdl_runner.errors import RunnerError

# Where each of Horovod's frameworks has its init() from.
_BASICS = "horovod.common.basics"


def refuse_horovod() -> None:
    """Makes ``hvd.init()`` raise in this process; importing Horovod stays as free as it was.

    It finds none of its variables in a rank of another backend, and would take itself for one
    process alone: each rank would train a model of its own, and all of them succeed. Its native
    code takes no word for "not here", hence this.
    """
    if _BASICS in sys.modules:
        _replace_init(sys.modules[_BASICS])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the one module as ever, and has it loaded with another ``init``."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _BASICS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _replace_init(module)


def _replace_init(basics: ModuleType) -> None:
    basics.HorovodBasics.init = _raise_at_init


def _raise_at_init(*args: object, **kwargs: object) -> NoReturn:
    raise RunnerError(
        "hvd.init() was called in a rank of the torch backend, in which Horovod knows of no other "
        f"rank, so that each would train a model of its own: choose {_choice_of('horovod')}, or "
        "call torch.distributed.init_process_group() in its place."
    )


def advice_on_torch(error: BaseException) -> str:
    """What to do where torch misses its rendezvous, as in a rank of another backend; else ""."""
    # Only a text of torch's own: to show anything else would run what the function's objects do.
    is_torchs = type(error) is ValueError and any(
        isinstance(one, str) and "environment variable MASTER_" in one for one in error.args
    )
    if not is_torchs:
        return ""
    return (
        "init_process_group() was called in a rank of the horovod backend: "
        f"choose {_choice_of('torch')}, or call hvd.init() in its place."
    )


def _choice_of(backend: str) -> str:
    """A backend, in the words of each place where it can be chosen."""
    return (
        f'the {backend} backend (DistributedRunner(backend="{backend}"), backend: {backend} in a '
        f"job's YAML, --backend {backend} on its command line)"
    )
