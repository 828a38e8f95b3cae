"""``DcpWriter``: each rank writes what DCP's plan gives it, and the coordinator commits.

DCP gathers the ranks' plans and scatters them, and with them goes what a writer has to know of its
attempt. The ranks' files, lists and manifest are those of a sharded checkpoint that a
``CheckpointManager`` saves; see :mod:`~sparkdl_runner.checkpoint.save.commit`.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from sparkdl_runner.base.filesystem import StorageOptions
from sparkdl_runner.checkpoint.dcp.steps import StepDirectory
from sparkdl_runner.checkpoint.directory.files import FileEntry
from sparkdl_runner.checkpoint.directory.manifest import MANIFEST, Manifest, Name
from sparkdl_runner.checkpoint.directory.shards import shards_state, wholes_state
from sparkdl_runner.checkpoint.directory.state_files import SUFFIX, flatten
from sparkdl_runner.checkpoint.directory.transient_errors import patiently
from sparkdl_runner.checkpoint.errors import CheckpointError
from sparkdl_runner.checkpoint.peers import host
from sparkdl_runner.checkpoint.save.attempt import begin_attempt, own_number, warn_of_other_owner
from sparkdl_runner.checkpoint.save.commit import Commit, SaveRequest
from sparkdl_runner.checkpoint.save.policy import SavePolicy
from sparkdl_runner.checkpoint.save.retention import remove
from sparkdl_runner.checkpoint.save.saver import save_error
from sparkdl_runner.checkpoint.save.snapshots import versions


@dataclass(frozen=True, kw_only=True)
class _Ticket:
    """The facts that the coordinator sends to a rank in its plan, the same at each save."""

    rank: int
    hosts: list[str]
    attempt: int
    token: str


class DcpWriter(StepDirectory, StorageWriter):
    """Saves by ``torch.distributed.checkpoint`` into a directory of checkpoints.

    Example::

        writer = DcpWriter("s3a://bucket/run-1")
        dcp.save(state, storage_writer=writer, checkpoint_id=f"step-{step}")

    Make one for a training, on each rank: its first save begins an attempt, after which no earlier
    one commits anything. ``checkpoint_id`` is ``step-N``, or a path that ends so; what is before it
    says nothing. Tensors, numbers, text, and dicts and lists of them can be saved.

    A save that fails raises DCP's ``CheckpointException`` on all ranks, with the sentence of each
    rank that failed. Nothing is committed then.

    Args:
        directory: As of a ``CheckpointManager``.
        retry_seconds: How long a storage that fails for a time is tried again.
        storage_options: As in :func:`~sparkdl_runner.base.filesystem.open_filesystem`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or the URL holds credentials.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        retry_seconds: float = 60.0,
        storage_options: StorageOptions | None = None,
    ) -> None:
        super().__init__(directory, storage_options, retry_seconds)
        self._policy = SavePolicy(retry_seconds=retry_seconds)
        self._attempt: tuple[int, str] | None = None
        self._hosts: list[str] = []
        self._commit: Commit | None = None
        self._own: list[FileEntry] = []

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses what cannot be saved with one commit, or without a step."""
        if not kwargs.get("use_collectives", True):
            raise CheckpointError(
                "With use_collectives=False no rank knows when all have written, so none could "
                "commit the checkpoint: leave it out."
            )
        if self._step is None:
            raise CheckpointError("There is no step to save: give checkpoint_id='step-N'.")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Tells the coordinator this rank's host."""
        return replace(plan, storage_data=host())

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: begins the attempt, and tells each rank of it."""
        number, token = self._attempt = self._attempt or self._begin(plans)
        directory = str(Name(step=self._step or 0, attempt=number))
        try:
            names = patiently(self._storage, lambda: self._storage.names(directory))
            if f"{directory}/{MANIFEST}" not in names:  # Left by a save that failed.
                remove(self._storage, directory, names)
        except Exception as error:  # Storages raise errors of many kinds.
            raise self._refused(error) from error
        return [
            replace(
                plan,
                storage_data=_Ticket(rank=rank, hosts=self._hosts, attempt=number, token=token),
            )
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's files, and the list of them that the coordinator reads."""
        job = self._request(plan, planner)
        self._commit = Commit(self._storage, job, threading.Event(), self._policy)
        try:
            self._own = self._commit.write_part()
        except Exception as error:  # Storages raise errors of many kinds.
            raise save_error(self._storage, job, error) from error
        written: Future[list[WriteResult]] = Future()
        written.set_result([])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, once all ranks have written: commits."""
        assert self._commit is not None  # noqa: S101 - write_data came before
        try:
            self._commit.commit(self._own)
        except Exception as error:  # Storages raise errors of many kinds.
            raise save_error(self._storage, self._commit.job, error) from error

    def _begin(self, plans: list[SavePlan]) -> tuple[int, str]:
        if not all(getattr(plan, "usable", True) for plan in plans):  # Since torch 2.7.
            raise CheckpointError(
                "The planner remembers the plan of another DcpWriter (enable_plan_caching), and "
                "with it that one's attempt. Make one writer for the training."
            )
        self._hosts = [plan.storage_data for plan in plans]
        warn_of_other_owner(self._storage)
        try:
            return patiently(self._storage, lambda: begin_attempt(self._storage, own_number()))
        except Exception as error:  # Storages raise errors of many kinds.
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"Rank 0 on host {host()}: no checkpoint can be kept in {self._storage.shown}, since "
            f"rank 0 cannot write there ({type(error).__name__}: {error})."
        )

    def _request(self, plan: SavePlan, planner: SavePlanner) -> SaveRequest:
        ticket: _Ticket = plan.storage_data
        about, contents = _own_part(plan, planner, ticket.rank)
        manifest = Manifest(
            step=self._step or 0,
            epoch=None,
            attempt=ticket.attempt,
            world_size=len(ticket.hosts),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            sharded=True,
            parameters={},
            optimizer_class="",  # DCP knows names and values.
            metrics={},
            loader=None,
            resumable={},
            files=(),
            versions=versions(),
        )
        return SaveRequest(
            manifest=manifest,
            rank=ticket.rank,
            hosts=ticket.hosts,
            token=ticket.token,
            states={
                path: flatten("the state", content, lambda tensor: tensor.detach().cpu())
                for path, content in contents.items()
            },
            shards=about,
        )


def _own_part(
    plan: SavePlan, planner: SavePlanner, rank: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a rank writes: its description for ``shards.merge``, and each file's content.

    Whole tensors and values have a file of their own, so that a rank which needs only them does not
    read the shards.
    """
    about: dict[str, Any] = {"tensors": {}, "values": {}, "paths": {}}
    contents: dict[str, Any] = {}
    for item in plan.items:
        name, data = item.index.fqn, item.tensor_data
        is_part = data is not None and data.chunk.sizes != data.size
        path = f"{shards_state(rank) if is_part else wholes_state(rank)}{SUFFIX}"
        content = contents.setdefault(path, {"tensors": {}, "values": {}})
        if plan.planner_data and name in plan.planner_data:
            about["paths"][name] = list(plan.planner_data[name])
        if data is None:
            content["values"][name] = _value(item, planner)
            about["values"][name] = {"path": path, "key": name}
            continue
        block = planner.resolve_data(item)
        offsets, sizes = list(data.chunk.offsets), list(data.chunk.sizes)
        key = f"{name}@{','.join(map(str, offsets))}"
        content["tensors"][key] = block
        tensor = about["tensors"].setdefault(
            name, {"shape": list(data.size), "dtype": str(data.properties.dtype), "shards": []}
        )
        tensor["shards"].append({"path": path, "key": key, "offsets": offsets, "sizes": sizes})
    return about, contents


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    """What is no tensor. A planner hands out its pickle, which is made in this process.

    Raises:
        TypeError: It can be loaded again only by running code.
    """
    if getattr(type(planner), "transform_object", None) is DefaultSavePlanner.transform_object:
        return planner.lookup_object(item.index)
    pickled = planner.resolve_data(item)
    assert isinstance(pickled, io.BytesIO)  # noqa: S101 - it is no tensor
    pickled.seek(0)
    try:
        return torch.load(pickled, weights_only=True)
    except pickle.UnpicklingError as error:
        raise TypeError(
            f"{item.index.fqn} is nothing that a checkpoint can hold: it could be loaded again "
            "only by running code from the file. Save tensors, numbers, text, and dicts and lists "
            "of them."
        ) from error
