"""Restores a training, on all ranks, from the newest checkpoint that is whole."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparkdl_runner.base.unwrapping import is_sharded
from sparkdl_runner.checkpoint import generators, mismatch, names, sharded
from sparkdl_runner.checkpoint.directory import shards
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import (
    EXTRA,
    MODEL,
    OPTIMIZER,
    Manifest,
    Name,
    generators_state,
    read_manifest,
)
from sparkdl_runner.checkpoint.directory.reader import CheckpointReader
from sparkdl_runner.checkpoint.directory.state_files import state_in
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointStorageError,
    UnreadableError,
)
from sparkdl_runner.checkpoint.peers import Peers, ask_rank_0, read_on_rank_0
from sparkdl_runner.checkpoint.read.host_reader import HostReader
from sparkdl_runner.checkpoint.stateful import Stateful, state_name
from sparkdl_runner.rank import resumable, world

# The longest text by which one rank reports damage to the others.
_PROBLEM_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The result of a restore, beside the state of model, optimizer and loader."""

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


def require_training(storage: Storage, peers: Peers) -> None:
    """Refuses to restore where nothing is trained; called for a model alone.

    Raises:
        CheckpointError: This process is no rank.
    """
    if type(peers) is Peers and not world.in_worker():
        raise CheckpointError(
            "restore() goes on with a training, and this process is no rank of one and restores a "
            "model without its optimizer. To use a model, read it with "
            f"Checkpoint.load({storage.shown!r}), which ends no training. To train in this one "
            "process, restore what is trained with the model, such as its optimizer."
        )


def restore(storage: Storage, peers: Peers, target: Stateful) -> Restored | None:
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
            return candidate.restore()
        except _PassedOverError:
            was_unreadable |= candidate.was_unreadable
    if peers.any_rank(was_unreadable):
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


def _newest(storage: Storage, peers: Peers, tried: set[Name]) -> Name | None:
    """The newest checkpoint that rank 0 sees and that was not tried, on all ranks."""

    def look() -> str | None:
        name = max(committed(storage) - tried, default=None)
        return None if name is None else str(name)

    try:
        newest = ask_rank_0(storage, peers, look, f"rank 0 cannot read {storage.shown}")
    except CheckpointError as error:
        raise CheckpointStorageError(str(error)) from error
    return None if newest is None else Name.parse(newest)


class _PassedOverError(Exception):
    """A rank found the candidate damaged, or could not read it."""


class _Candidate:
    """One checkpoint that may be restored; all ranks agree on every step."""

    _manifest: Manifest

    def __init__(self, storage: Storage, peers: Peers, name: Name, target: Stateful) -> None:
        self._storage = storage
        self._peers = peers
        self._name = name
        self._target = target
        self._path = f"{storage.shown}/{name}"
        self._states: dict[str, Any] = {}
        """Verified states in memory, before they are loaded into their objects."""
        self._shards: dict[str, Any] = {}
        """The index of a sharded checkpoint's shards; see ``directory.shards``."""
        self._parts: dict[str, Any] = {}
        """The target's own state, of which each rank has a part, if it is sharded."""
        self._unknown: set[str] = set()
        """Tensors of this target that the sharded checkpoint has and no rank has."""
        self.was_unreadable = False
        """Whether this rank passed it over for what may be no damage at all."""

    def restore(self) -> Restored:
        """Puts everything where it belongs, once it is certain that it is whole and fits."""
        with self._agreed_whole():
            self._open()
        self._compare_names()
        is_misfit = self._manifest.sharded and self._sharded_mismatch() is not None
        paths: list[str] = []
        if self._manifest.sharded and self._parts and not is_misfit:
            paths = sharded.files_needed(self._shards, self._parts)
        wanted = [*self._states_wanted(), *map(state_in, paths)]
        reader = HostReader(self._storage, self._manifest, self._peers, wanted)
        try:
            with self._agreed_whole():
                reader.fetch()
            with self._agreed_whole():
                self._states = {state: reader.load(state) for state in self._states_wanted()}
                contents = {path: reader.load_shards(path) for path in paths}
        finally:
            reader.close()
        problem = self._mismatch()
        if self._peers.any_rank(problem is not None):
            raise CheckpointMismatchError(
                f"Rank {self._peers.rank} cannot restore the checkpoint {self._path}: "
                f"{problem or 'another rank says so; its own error says why.'}"
            )
        self._put_back(contents)
        manifest = self._manifest
        return Restored(
            step=manifest.step,
            epoch=manifest.epoch,
            attempt=manifest.attempt,
            world_size=manifest.world_size,
            extra=self._states[EXTRA],
            metrics=manifest.metrics,
            path=self._path,
        )

    @contextmanager
    def _agreed_whole(self) -> Iterator[None]:
        """Passes the checkpoint over on all ranks if it turns out to be damaged on any."""
        problem = ""
        try:
            yield
        except Exception as error:  # Damage, or a storage that raises its own kind of error.
            problem = f"passed over by rank {self._peers.rank}: {error}."
            self.was_unreadable = isinstance(error, (UnreadableError, MemoryError))
        if not self._peers.any_rank(bool(problem)):
            return
        problems = [problem, *self._peers.gather_text(problem, _PROBLEM_BYTES)]
        problem = next(filter(None, problems))
        warnings.warn(f"The checkpoint {self._path} is {problem}", stacklevel=6)
        raise _PassedOverError

    def _open(self) -> None:
        """Takes what rank 0 reads of what the checkpoint holds: no storage is asked N times."""
        storage, name = self._storage, self._name
        text = read_on_rank_0(self._peers, lambda: read_manifest(storage, name).to_bytes())
        self._manifest = manifest = Manifest.from_bytes(text)
        if manifest.sharded:
            reader = CheckpointReader(storage, manifest)
            content = read_on_rank_0(self._peers, lambda: reader.read(shards.METADATA))
            self._shards = shards.metadata_of(content)

    def _states_wanted(self) -> list[str]:
        """The states that this rank loads, beside its shards."""
        target = self._target
        wanted = [EXTRA, generators_state(self._peers.rank), *map(state_name, target.others)]
        if not self._manifest.sharded:
            wanted += [MODEL] * (target.model is not None)
            wanted += [OPTIMIZER] * (target.optimizer is not None)
        return wanted

    def _compare_names(self) -> None:
        """Looks up what the ranks have of a sharded model; all of them take part."""
        model, optimizer = self._target.model, self._target.optimizer
        if model is None or not (self._manifest.sharded or is_sharded(model)):
            return
        self._parts = sharded.state_of(model, optimizer)
        if self._manifest.sharded:
            saved = [*self._shards["tensors"], *self._shards["values"]]
            self._unknown = names.in_none(saved, names.names_of_ranks(self._peers, self._parts))

    def _mismatch(self) -> str | None:
        manifest, target = self._manifest, self._target
        for name in target.others:
            if manifest.first_file(state_name(name)) is None:
                return f"it holds no state of {name}, and one is to be restored. Leave it out."
        if target.loader is not None and manifest.loader is None:
            return "it holds no state of a loader, and one is to be restored. Leave loader out."
        if target.optimizer is not None:
            problem = mismatch.optimizer_problem(manifest, target.optimizer)
            if problem is not None:
                return problem
        if manifest.sharded:
            return self._sharded_mismatch()
        if target.model is not None:
            here = sharded.model_part(self._parts) or target.model.state_dict()
            problem = mismatch.model_problem(manifest, here)
            if problem is not None:
                return problem
        if target.optimizer is None:
            return None
        groups = self._states[OPTIMIZER]["param_groups"]
        return mismatch.groups_problem(groups, target.optimizer.param_groups)

    def _sharded_mismatch(self) -> str | None:
        model, optimizer = self._target.model, self._target.optimizer
        if model is None:
            if optimizer is None:
                return None
            return "it is sharded, so that its optimizer is restored only with its model."
        unknown = sharded.model_part(dict.fromkeys(self._unknown))
        here = sharded.model_part(self._parts)
        problem = mismatch.model_problem(self._manifest, here, unknown)
        if problem is not None or optimizer is None:
            return problem
        saved = {*self._shards["tensors"], *self._shards["values"]}
        own = sharded.optimizer_names(self._parts)
        return mismatch.names_problem((saved & own) | sharded.optimizer_names(self._unknown), own)

    def _put_back(self, contents: dict[str, Any]) -> None:
        manifest, target, rank = self._manifest, self._target, self._peers.rank
        if target.loader is not None:
            # First, as it may raise errors of its own: nothing else is changed then.
            target.loader.load_state_dict(manifest.loader)
        for name, stateful in target.others.items():
            stateful.load_state_dict(self._states[state_name(name)])
        if self._parts:
            if manifest.sharded:
                sharded.fill(self._shards, self._parts, contents)
            else:
                sharded.fill_from_whole(self._parts, self._states)
            sharded.set_state(target.model, target.optimizer, self._parts)
        elif not manifest.sharded:
            if target.model is not None:
                target.model.load_state_dict(self._states[MODEL])
            if target.optimizer is not None:
                target.optimizer.load_state_dict(self._states[OPTIMIZER])
        if rank == 0:
            resumable.put_back(manifest.resumable)
        own = self._states[generators_state(rank)]
        if own is None:
            generators.seed(manifest.step, rank)
        else:
            generators.put_back(own)
