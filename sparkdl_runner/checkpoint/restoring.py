"""From the newest checkpoint that is whole, on all ranks, back to where training was."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.checkpoint import generators, mismatch, sharded
from sparkdl_runner.checkpoint.directory import attempts, shards
from sparkdl_runner.checkpoint.directory.files import (
    DamageError,
    Fetched,
    UnreadableError,
    read_bytes,
)
from sparkdl_runner.checkpoint.directory.manifest import (
    EXTRA,
    MODEL,
    OPTIMIZER,
    Manifest,
    Name,
    generators_state,
)
from sparkdl_runner.checkpoint.directory.retrying import patiently
from sparkdl_runner.checkpoint.directory.sealed import BrokenSealError
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.directory.tensor_files import state_in
from sparkdl_runner.checkpoint.directory.verify import read_manifest
from sparkdl_runner.checkpoint.errors import CheckpointMismatchError, CheckpointStorageError
from sparkdl_runner.checkpoint.peers import Peers, any_rank
from sparkdl_runner.hooks import resumable
from sparkdl_runner.unwrapping import is_sharded


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What was restored, beside the state of model, optimizer and loader."""

    step: int
    """Steps that were done."""
    epoch: int | None
    """As it was given to ``save``."""
    attempt: int
    """The attempt that saved it."""
    world_size: int
    """Of that attempt."""
    extra: Any
    """As it was given to ``save``, with tensors in host memory."""
    metrics: dict[str, float]
    """As they were given to ``save``."""
    path: str
    """The checkpoint's URL, without credentials."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is to be restored; None is left alone."""

    model: Any
    optimizer: Any
    loader: Any


def restore(storage: Storage, peers: Peers, target: Target) -> Restored | None:
    """Restores the newest checkpoint that every rank finds whole.

    Returns:
        None if there is no checkpoint, or none that is whole; the latter is a warning too.

    Raises:
        CheckpointMismatchError: The newest whole checkpoint is of another model or optimizer.
            Nothing was changed then, on any rank.
        CheckpointStorageError: The directory cannot be read, or none of the checkpoints can.
    """
    tried: set[Name] = set()
    was_unreadable = False
    # A training that goes on may remove what is being read, so look again each time.
    while (name := _newest(storage, peers, tried)) is not None:
        tried.add(name)
        candidate = _Candidate(storage, peers, name, target)
        try:
            if candidate.is_whole():
                return candidate.restore()
        except _PassedOverError:
            was_unreadable |= candidate.was_unreadable
        finally:
            candidate.close()
    if any_rank(peers, was_unreadable):
        raise CheckpointStorageError(
            f"Rank {peers.rank} restores none of the {len(tried)} checkpoints in {storage.shown}, "
            "since the storage could not be read (the warnings before say how). To begin from the "
            "start would lose what they hold: try again once the storage answers."
        )
    if tried:
        warnings.warn(
            f"None of the {len(tried)} checkpoints in {storage.shown} is whole, so training begins "
            "from the start.",
            stacklevel=3,
        )
    return None


class _PassedOverError(Exception):
    """The candidate turned out to be damaged."""


def _newest(storage: Storage, peers: Peers, tried: set[Name]) -> Name | None:
    """The newest checkpoint that rank 0 sees and that was not tried, on all ranks."""
    answer: dict[str, Any] = {}
    if peers.rank == 0:
        try:
            found = patiently(storage, lambda: attempts.visible(storage, storage.names()))
            name = max(found - tried, default=None)
            answer = {"name": name and [name.step, name.attempt]}
        except Exception as error:  # Storages raise errors of many kinds.
            answer = {"error": f"{type(error).__name__}: {error}"}
    answer = json.loads(peers.broadcast(json.dumps(answer).encode()))
    if "error" in answer:
        raise CheckpointStorageError(f"Rank 0 cannot read {storage.shown}: {answer['error']}")
    if answer["name"] is None:
        return None
    step, attempt = answer["name"]
    return Name(step=step, attempt=attempt)


@dataclass
class _Loaded:
    """What of a checkpoint is in memory, and not yet where it belongs."""

    model: Any = None
    optimizer: Any = None
    extra: Any = None
    generators: Any = None
    sharded: tuple[sharded.Reading, tuple[dict[str, Any], dict[str, Any]]] | None = None
    contents: dict[str, Any] = field(default_factory=dict)


class _Candidate:
    """One checkpoint on its way back; every step is agreed on by all ranks."""

    _manifest: Manifest

    def __init__(self, storage: Storage, peers: Peers, name: Name, target: Target) -> None:
        self._storage = storage
        self._peers = peers
        self._name = name
        self._target = target
        self._fetched = Fetched(storage, str(name))
        self.was_unreadable = False
        """Whether this rank passed it over for what may be no damage at all."""

    def close(self) -> None:
        self._fetched.close()

    def is_whole(self) -> bool:
        """Whether all ranks find all bytes that they look at as they were written."""
        try:
            self._manifest = read_manifest(self._storage, self._name)
            for entry in self._manifest.files:
                if self._is_mine_to_check(entry.path):
                    self._fetched.check(entry)
        except Exception as problem:  # Damage, or a storage that raises its own kind of error.
            self._pass_over(problem)
        self._agree_whole()
        return True

    def restore(self) -> Restored:
        """Puts everything where it belongs, once it is certain that it fits."""
        self._agree_match(self._mismatch())
        loaded = self._load()
        manifest, target = self._manifest, self._target
        if target.loader is not None:
            target.loader.load_state_dict(manifest.loader)
        if loaded.sharded is not None:
            reading, state = loaded.sharded
            values = reading.read(loaded.contents.__getitem__)
            for name, value in values.items():
                part, _, key = name.partition(".")
                state[0 if part == "model" else 1][key] = value
            sharded.set_state(target.model, target.optimizer, state)
        else:
            if target.model is not None:
                target.model.load_state_dict(loaded.model)
            if target.optimizer is not None:
                target.optimizer.load_state_dict(loaded.optimizer)
        if self._peers.rank == 0:
            resumable.put_back(manifest.resumable)
        if loaded.generators is not None:
            generators.put_back(loaded.generators)
        else:
            generators.seed(manifest.step, self._peers.rank)
        return Restored(
            step=manifest.step,
            epoch=manifest.epoch,
            attempt=manifest.attempt,
            world_size=manifest.world_size,
            extra=loaded.extra,
            metrics=manifest.metrics,
            path=f"{self._storage.shown}/{self._name}",
        )

    def _is_mine_to_check(self, path: str) -> bool:
        if self._manifest.sharded and path.startswith("sharded/"):
            if path == shards.METADATA:
                return True
            # Together the ranks look at all of them; each reads what it needs once more.
            order = [entry.path for entry in self._manifest.files].index(path)
            return order % self._peers.size == self._peers.rank
        own = {MODEL, OPTIMIZER, EXTRA, generators_state(self._peers.rank)}
        return self._peers.rank == 0 or state_in(path) in own

    def _mismatch(self) -> str | None:
        manifest, target = self._manifest, self._target
        if target.loader is not None and manifest.loader is None:
            return "it holds no state of a loader, and one is to be restored. Leave loader out."
        if target.optimizer is not None:
            problem = mismatch.optimizer_problem(manifest, target.optimizer)
            if problem:
                return problem
        if target.model is None:
            if manifest.sharded and target.optimizer is not None:
                return "it is sharded, so that its optimizer is restored only with its model."
            return None
        if manifest.sharded:
            return mismatch.model_problem(manifest, sharded.state_of(target.model, None)[0])
        if is_sharded(target.model):
            return "it was saved whole, and the model is sharded. Restore it before sharding."
        return mismatch.model_problem(manifest, target.model.state_dict())

    def _load(self) -> _Loaded:
        loaded = _Loaded()
        manifest, target = self._manifest, self._target
        problem = None
        try:
            loaded.extra = self._load_state(EXTRA)
            loaded.generators = self._load_state(generators_state(self._peers.rank))
            if manifest.sharded:
                problem = self._load_shards(loaded)
            else:
                if target.model is not None:
                    loaded.model = self._load_state(MODEL)
                if target.optimizer is not None:
                    loaded.optimizer = self._load_state(OPTIMIZER)
                    here = target.optimizer.state_dict()
                    problem = mismatch.groups_problem(loaded.optimizer, here)
        except (DamageError, BrokenSealError, OSError) as damage:
            self._pass_over(damage)
        self._agree_whole()
        self._agree_match(problem)
        return loaded

    def _load_state(self, state: str) -> Any:
        """A state of which all files are whole; None if the checkpoint does not hold it."""
        entries = self._manifest.entries(state)
        return self._fetched.load(entries[0].path) if entries else None

    def _load_shards(self, loaded: _Loaded) -> str | None:
        target = self._target
        if target.model is None:
            return None
        name = f"{self._name}/{shards.METADATA}"
        content = read_bytes(self._storage, name, limit_bytes=shards.MOST_BYTES)
        metadata = shards.metadata_of(content)
        state = sharded.state_of(target.model, target.optimizer)
        prefix = "optimizer."
        if target.optimizer is not None:
            saved = [*metadata["tensors"], *metadata["values"]]
            problem = mismatch.names_problem(
                (name for name in saved if name.startswith(prefix)),
                (name for name in sharded.joined(({}, state[1]))),
            )
            if problem:
                return problem
        reading = sharded.Reading(metadata, sharded.joined(state))
        for path in sorted(reading.files()):
            for entry in self._manifest.entries(state_in(path)):
                self._fetched.check(entry)
            loaded.contents[path] = self._fetched.load(path)
        loaded.sharded = (reading, state)
        return None

    def _pass_over(self, problem: Exception) -> None:
        warnings.warn(
            f"The checkpoint {self._storage.shown}/{self._name} is passed over by rank "
            f"{self._peers.rank}: {problem}.",
            stacklevel=5,
        )
        self.was_unreadable = isinstance(problem, UnreadableError)
        any_rank(self._peers, True)
        raise _PassedOverError

    def _agree_whole(self) -> None:
        if any_rank(self._peers, False):
            raise _PassedOverError

    def _agree_match(self, problem: str | None) -> None:
        if any_rank(self._peers, problem is not None):
            shown = f"{self._storage.shown}/{self._name}"
            if problem is None:
                problem = "another rank says so; its own error says why."
            raise CheckpointMismatchError(
                f"Rank {self._peers.rank} cannot restore the checkpoint {shown}: {problem}"
            )
