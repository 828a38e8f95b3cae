"""Models of which each rank holds a part: each rank saves its own, and reads what it needs.

The plans are those of ``torch.distributed.checkpoint``: which block of which tensor a rank has,
and which blocks of which files make up what it has in another world. Its files are not: they
and what ranks tell each other are pickled there. Here every rank plans, writes and reads by
itself, and the lists are JSON (see :mod:`~sparkdl_runner.checkpoint.directory.shards`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparkdl_runner.checkpoint.directory.shards import shards_state
from sparkdl_runner.checkpoint.directory.tensor_files import SUFFIX


def state_of(model: Any, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of a model and of its optimizer, each flat, with parameters' names as keys."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
    )

    options = StateDictOptions(flatten_optimizer_state_dict=True)
    of_model = get_model_state_dict(model, options=options) if model is not None else {}
    of_optimizer: dict[str, Any] = {}
    if optimizer is not None:
        of_optimizer = dict(get_optimizer_state_dict(model, optimizer, options=options))
    return dict(of_model), of_optimizer


def set_state(model: Any, optimizer: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Gives model and optimizer what ``state_of`` returned, with other values in it."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    options = StateDictOptions(flatten_optimizer_state_dict=True)
    if model is not None:
        set_model_state_dict(model, state[0], options=options)
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state[1], options=options)


def joined(state: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """Both states in one, ``model.…`` and ``optimizer.…``."""
    return {
        **{f"model.{name}": value for name, value in state[0].items()},
        **{f"optimizer.{name}": value for name, value in state[1].items()},
    }


def own_part(state: Mapping[str, Any], rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What this rank is to write.

    Args:
        state: As ``joined`` returned it, on every rank.
        rank: This rank. Rank 0 writes what is not sharded.

    Returns:
        The content of ``shards_state(rank)``, and its description for ``shards.merge``.
    """
    import torch
    from torch.distributed.checkpoint import DefaultSavePlanner
    from torch.distributed.tensor import DTensor

    tensors = {
        name: value
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
        and (_is_first_replica(value) if isinstance(value, DTensor) else rank == 0)
    }
    values = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(tensors, None, rank == 0)
    path = f"{shards_state(rank)}{SUFFIX}"
    content: dict[str, Any] = {"tensors": {}, "values": values if rank == 0 else {}}
    about: dict[str, Any] = {
        "tensors": {},
        "values": {name: {"path": path, "key": name} for name in content["values"]},
    }
    for item in planner.create_local_plan().items:
        name, data = item.index.fqn, item.tensor_data
        if data is None or (0 in data.chunk.sizes and 0 not in data.size):
            continue  # This rank has nothing of it.
        key = f"{name}@{','.join(map(str, data.chunk.offsets))}"
        content["tensors"][key] = planner.resolve_data(item)
        whole = about["tensors"].setdefault(
            name,
            {"shape": list(data.size), "dtype": str(data.properties.dtype), "shards": []},
        )
        whole["shards"].append(
            {
                "path": path,
                "key": key,
                "offsets": list(data.chunk.offsets),
                "sizes": list(data.chunk.sizes),
            }
        )
    return content, about


def _is_first_replica(tensor: Any) -> bool:
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    return not any(
        place.is_replicate() and position
        for place, position in zip(tensor.placements, coordinate, strict=True)
    )


class Reading:
    """Reads into tensors of this rank what it needs of a sharded checkpoint.

    Args:
        metadata: What ``shards.merge`` returned.
        state: As ``joined`` returned it; its names and shapes must be those of the checkpoint.
    """

    def __init__(self, metadata: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        import torch
        from torch.distributed.checkpoint import DefaultLoadPlanner

        self._metadata = metadata
        self._tensors = {
            name: value for name, value in state.items() if isinstance(value, torch.Tensor)
        }
        self._values = [name for name in state if name not in self._tensors]
        self._planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._planner.set_up_planner(self._tensors, self._as_torch(), True)
        self._plan = self._planner.finish_plan(self._planner.create_local_plan())

    def files(self) -> set[str]:
        """The files that ``read`` will need."""
        needed = {self._shard(item)["path"] for item in self._plan.items}
        return needed | {self._metadata["values"][name]["path"] for name in self._values}

    def read(self, load: Callable[[str], Any]) -> dict[str, Any]:
        """Fills the tensors.

        Args:
            load: Returns the content of a file.

        Returns:
            What is no tensor, by name.
        """
        from torch.distributed._shard._utils import narrow_tensor_by_index

        values = {}
        for path in sorted(self.files()):
            content = load(path)
            for item in self._plan.items:
                shard = self._shard(item)
                if shard["path"] != path:
                    continue
                source = narrow_tensor_by_index(
                    content["tensors"][shard["key"]], item.storage_offsets, item.lengths
                )
                target = self._planner.resolve_tensor(item).detach()
                target.copy_(source)
                self._planner.commit_tensor(item, target)
            for name in self._values:
                where = self._metadata["values"][name]
                if where["path"] == path:
                    values[name] = content["values"][where["key"]]
        return values

    def _shard(self, item: Any) -> Mapping[str, Any]:
        offsets = list(item.storage_index.offset)
        shards = self._metadata["tensors"][item.storage_index.fqn]["shards"]
        return next(shard for shard in shards if shard["offsets"] == offsets)

    def _as_torch(self) -> Any:
        import torch
        from torch.distributed.checkpoint import metadata as dcp

        return dcp.Metadata(
            state_dict_metadata={
                name: dcp.TensorStorageMetadata(
                    properties=dcp.TensorProperties(
                        dtype=getattr(torch, whole["dtype"].removeprefix("torch."))
                    ),
                    size=torch.Size(whole["shape"]),
                    chunks=[
                        dcp.ChunkStorageMetadata(
                            offsets=torch.Size(shard["offsets"]), sizes=torch.Size(shard["sizes"])
                        )
                        for shard in whole["shards"]
                    ],
                )
                for name, whole in self._metadata["tensors"].items()
            }
        )
