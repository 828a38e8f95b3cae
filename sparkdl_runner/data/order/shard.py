"""Which shard this process reads, and how many rows all ranks take in a step."""

from __future__ import annotations

from sparkdl_runner.rank import world


def resolve_shard(cur_shard: int | None, shard_count: int | None) -> tuple[int, int]:
    """The shard of this process, and how many there are: as given, else rank and world size.

    Shard 0 of 1 is all rows, and any rank may read that, such as to validate on rank 0 alone.

    Raises:
        ValueError: Only one of the two is given, they are out of range, or they disagree with
            the rank of this process.
    """
    if (cur_shard is None) != (shard_count is None):
        raise ValueError("cur_shard and shard_count go together: give both, or neither.")
    here = world.current_world() if world.in_worker() else None
    if cur_shard is None or shard_count is None:
        return (here.rank, here.size) if here is not None else (0, 1)
    if not 0 <= cur_shard < shard_count:
        raise ValueError(
            f"cur_shard is {cur_shard}; expected 0 to {shard_count - 1}, as shard_count is "
            f"{shard_count}."
        )
    if here is not None and (cur_shard, shard_count) not in ((here.rank, here.size), (0, 1)):
        raise ValueError(
            f"cur_shard={cur_shard} and shard_count={shard_count} disagree with this worker, "
            f"which is rank {here.rank} of {here.size}: some rows would be read twice and others "
            "never. Leave both out. To read all rows on this rank, give 0 and 1. To give the ranks "
            "of one model copy the same rows, give shard_by=mesh['dp'], a mesh dimension."
        )
    return cur_shard, shard_count


def global_batch(batch_size: int | None, global_batch_size: int | None, world_size: int) -> int:
    """Rows that all ranks together get in a step.

    Raises:
        ValueError: Both sizes or none are given, or the ranks cannot share them evenly.
    """
    if batch_size is not None and global_batch_size is None:
        return batch_size * world_size
    if batch_size is not None or global_batch_size is None:
        raise ValueError("give batch_size (rows per rank) or global_batch_size, and not both.")
    if global_batch_size % world_size:
        below = global_batch_size // world_size * world_size
        near = [str(size) for size in (below, below + world_size) if size > 0]
        raise ValueError(
            f"global_batch_size={global_batch_size} cannot be shared evenly by {world_size} "
            f"ranks. {' or '.join(near)} would fit."
        )
    return global_batch_size
