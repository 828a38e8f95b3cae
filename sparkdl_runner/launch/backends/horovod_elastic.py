"""``hvd.elastic.run`` on ranks of a fixed number: a lost one restarts all, from the last commit.

Horovod's own waits for a driver of Horovod's to make another world, and for its word on a port
whose messages it unpickles. Here the runner restarts the ranks, and ``state.commit()`` keeps the
state where the next attempt finds it.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.base.filesystem import join_url
from sparkdl_runner.base.shown_text import tell

PLACE = "SPARKDL_RUNNER_ELASTIC_STATE_URL"
"""The variable by which ranks know ``RunConfig.elastic_state_url``."""
# A commit that is damaged is passed over for the one before.
_KEEP_LAST = 2
# Names for which ``CheckpointManager`` has arguments.
_BY_MANAGER = ("model", "optimizer")

_numbers = itertools.count(1)


@dataclass
class _Past:
    """How far this process has handled a state."""

    folder: str = field(default_factory=lambda: f"state-{next(_numbers)}")
    """States have a folder each, in the order in which they are run: in the next attempt too."""
    commits: int = 0
    """How many there are, those of earlier attempts too."""
    is_restored: bool = False
    """Whether it was looked for in the storage: a later call goes on with what is in memory."""


_past: weakref.WeakKeyDictionary[Any, _Past] = weakref.WeakKeyDictionary()


def take_over() -> None:
    """Puts ``run_fn`` in the place of Horovod's, in a worker that has imported Horovod."""
    of_torch = sys.modules.get("horovod.torch.elastic")
    if of_torch is None:
        return  # Its import failed, and will again in the function.
    from horovod.common import elastic
    from horovod.runner.elastic.worker import WorkerNotificationManager

    elastic.run_fn = of_torch.run_fn = run_fn  # type: ignore[attr-defined]
    # For all other callers: never open a port that unpickles.
    WorkerNotificationManager.init = lambda *_, **__: None


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """What ``hvd.elastic.run`` returns.

    Args:
        func: The user's function, which takes a state of Horovod's first.
        reset: How Horovod begins another world in this process; not needed.
    """

    @functools.wraps(func)
    def call(state: Any, *args: Any, **kwargs: Any) -> Any:
        with _kept(state):
            state.sync()
            # HorovodInternalError passes: a peer is lost, and all ranks are started again.
            return func(state, *args, **kwargs)

    return call


@contextmanager
def _kept(state: Any) -> Iterator[None]:
    """Restores a state where there was a commit, and writes its commits until the end."""
    from sparkdl_runner.checkpoint import CheckpointManager

    place = _place()
    if not hasattr(state, "_saved_state"):
        raise TypeError(
            f"hvd.elastic.run was called with {state!r}, which is no state of Horovod's: give it a "
            "TorchState or an ObjectState, or an object of a class made from one."
        )
    if state not in _past:
        _past[state] = _Past()
    past = _past[state]
    model, optimizer = (_handled(state).get(name) for name in _BY_MANAGER)
    folder = join_url(place, past.folder)
    # In the foreground: once commit() has returned, the next attempt must find it.
    with CheckpointManager(folder, keep_last=_KEEP_LAST, asynchronous=False) as checkpoints:
        if not past.is_restored:
            past.is_restored = True
            if restored := checkpoints.restore(model, optimizer):
                past.commits = restored.step
                _put_back(state, restored.extra)
                if os.environ.get("RANK", "0") == "0":
                    tell(f"hvd.elastic.run goes on from {restored.path}", sys.stdout)
        commit_to_memory = state.commit

        def commit() -> None:
            commit_to_memory()
            past.commits += 1
            checkpoints.due(past.commits)  # So that all ranks know where one was asked to stop.
            checkpoints.save(past.commits, model, optimizer, extra=_others(state))

        state.commit = commit
        try:
            yield
        finally:
            del state.commit


def _place() -> str:
    from sparkdl_runner.checkpoint import CheckpointError

    if place := os.environ.get(PLACE):
        return place
    raise CheckpointError(
        "hvd.elastic.run has no place for its state, so that nothing would be left of it once a "
        "rank is lost: give the runner run_config=RunConfig(elastic_state_url=…, max_restarts=…), "
        "with a folder or URL that all hosts see and no other training has."
    )


def _others(state: Any) -> dict[str, Any]:
    """The content of a commit besides model and optimizer: states of objects, and plain values."""
    return {
        name: part.state_dict() if _is_stateful(part) else part
        for name, part in _held(state).items()
    }


def _put_back(state: Any, others: dict[str, Any]) -> None:
    """Restores the committed state and calls the reset callbacks, as Horovod does after a loss."""
    for name, part in _held(state).items():
        if name not in others:
            continue
        if _is_stateful(part):
            part.load_state_dict(others[name])
        else:
            setattr(state, name, others[name])
    state.save()  # What sync() sends is what was committed to memory last.
    state.on_reset()


def _held(state: Any) -> dict[str, Any]:
    """The parts of a state besides model and optimizer."""
    others = {name: part for name, part in _handled(state).items() if name not in _BY_MANAGER}
    return others | {name: getattr(state, name) for name in state._saved_state}


def _handled(state: Any) -> dict[str, Any]:
    """Models, optimizers and samplers of a ``TorchState``."""
    return {name: handler.value for name, handler in getattr(state, "_handlers", {}).items()}


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
