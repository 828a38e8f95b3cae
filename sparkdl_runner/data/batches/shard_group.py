"""Which rows a rank reads where several ranks hold one copy of a model: its place in a mesh."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.order.shard import resolve_shard


class Shard(NamedTuple):
    """One shard, where it is not the rank that says which: such as of one process of several."""

    number: int
    """From 0."""
    of: int
    """How many there are."""


def shard_of(shard_by: Any, cur_shard: Any, shard_count: Any) -> tuple[int, int]:
    """The shard of this process, and how many there are.

    Args:
        shard_by: One dimension of a ``DeviceMesh``, or a process group: ranks along it read
            different shards, and ranks of the same place in it the same one. Or a ``Shard``. None
            goes by the numbers.
        cur_shard: As for ``resolve_shard``.
        shard_count: The same.

    Raises:
        TypeError: ``shard_by`` is neither, or a number is none.
        ValueError: Both ways are given, this rank is not in ``shard_by``, it has several
            dimensions, or the numbers do not fit.
    """
    if shard_by is None:
        cur_shard = whole_number("cur_shard", cur_shard, least=0)
        return resolve_shard(cur_shard, whole_number("shard_count", shard_count))
    if cur_shard is not None or shard_count is not None:
        raise ValueError(
            "shard_by says which shard this rank reads, and so do cur_shard and shard_count: give "
            "one of the two."
        )
    if isinstance(shard_by, Shard):
        return shard_by
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    if shard_by is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(_not_in("a process group of other ranks"))
    if isinstance(shard_by, dist.ProcessGroup):
        place = dist.get_rank(shard_by)
        if place < 0:
            raise ValueError(
                _not_in(f"the group of ranks {dist.get_process_group_ranks(shard_by)}")
            )
        return place, dist.get_world_size(shard_by)
    if not isinstance(shard_by, DeviceMesh):
        raise TypeError(
            f"shard_by is {shard_by!r}; expected one dimension of a DeviceMesh, such as "
            "mesh['dp'], or a process group of torch.distributed."
        )
    if shard_by.ndim != 1:
        names = shard_by.mesh_dim_names or ("dp",)
        raise ValueError(
            f"shard_by is {shard_by}, a mesh of {shard_by.ndim} dimensions; expected the one along "
            f"which ranks read different rows, such as mesh[{names[0]!r}]."
        )
    if shard_by.get_coordinate() is None:
        raise ValueError(_not_in(f"the mesh of ranks {shard_by.mesh.tolist()}"))
    return shard_by.get_local_rank(), shard_by.size()


def _not_in(what: str) -> str:
    import torch.distributed as dist

    return (
        f"Rank {dist.get_rank()} of {dist.get_world_size()} is not in shard_by, {what}, so that "
        "no rows are its own. Give a mesh or group in which this rank is, or open the loader in "
        "the other ranks only."
    )
