"""Which parts of which tensors lie in which file, as JSON, and put together from all ranks.

A shard is ``{"path", "key", "offsets", "sizes"}``: the tensor ``key`` in the file ``path`` is the
block of the whole that begins at ``offsets``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.base.foreign_file import ForeignFileError, build
from sparkdl_runner.checkpoint.directory.sealed import unseal
from sparkdl_runner.checkpoint.errors import CheckpointError, DamageError

METADATA = "sharded/metadata.json"


def shards_state(rank: int) -> str:
    """The name of a rank's shards; see ``state_files``."""
    return f"sharded/rank-{rank}"


def wholes_state(rank: int) -> str:
    """The name of what a rank writes for all: whole tensors, and values that are no tensors."""
    return f"sharded/whole-{rank}"


@dataclass(frozen=True, kw_only=True)
class _Shard:
    path: str
    key: str
    offsets: list[int]
    sizes: list[int]


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    shape: list[int]
    dtype: str
    shards: list[Any]


@dataclass(frozen=True, kw_only=True)
class _Metadata:
    tensors: dict[str, Any]
    values: dict[str, dict[str, str]]
    paths: dict[str, list[Any]] = field(default_factory=dict)
    """The keys that lead to each name in a nested state; where they are not known, names do."""


def metadata_of(content: bytes) -> dict[str, Any]:
    """What ``merge`` returned, from its file.

    Raises:
        DamageError: It is damaged, or is something else.
    """
    fields = unseal(content, METADATA)
    try:
        for tensor in build(_Metadata, fields).tensors.values():
            for shard in build(_Tensor, tensor).shards:
                build(_Shard, shard)
        if any(value.keys() != {"path", "key"} for value in fields["values"].values()):
            raise ForeignFileError("a value has no place")
    except ForeignFileError as error:
        raise DamageError(f"{METADATA} describes no shards ({error})") from None
    return fields


def merge(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Puts together what all ranks wrote.

    Args:
        parts: Of each rank: ``{"tensors": {name: {"shape", "dtype", "shards"}}, "values":
            {name: {"path", "key"}}}``, and perhaps ``"paths": {name: [key, …]}``.

    Returns:
        The same of all together, each shard once.

    Raises:
        CheckpointError: The shards of a tensor do not make up the whole.
    """
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    places: dict[str, dict[tuple[int, ...], Any]] = {}
    for part in parts:
        values.update(part.get("values", {}))
        paths.update(part.get("paths", {}))
        for name, mine in part.get("tensors", {}).items():
            tensors.setdefault(name, mine)
            of_name = places.setdefault(name, {})
            for shard in mine["shards"]:
                of_name.setdefault(tuple(shard["offsets"]), shard)
    tensors = {
        name: {**tensor, "shards": list(places[name].values())} for name, tensor in tensors.items()
    }
    for name, whole in tensors.items():
        elements = sum(math.prod(shard["sizes"]) for shard in whole["shards"])
        if elements != math.prod(whole["shape"]):
            raise CheckpointError(
                f"The ranks' shards of {name} hold {elements:,} of its "
                f"{math.prod(whole['shape']):,} elements: not all ranks saved the same model."
            )
    return {"tensors": tensors, "values": values} | ({"paths": paths} if paths else {})
