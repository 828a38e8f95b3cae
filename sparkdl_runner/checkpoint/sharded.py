"""Models of which each rank holds a part: each rank saves its own, and reads what it needs.

A part is a ``DTensor``'s shard, a stage of a pipeline, or ZeRO-1's part of an optimizer.

Every rank writes and reads by itself, and the lists of blocks are JSON (see
:mod:`~sparkdl_runner.checkpoint.directory.shards`). The files of ``torch.distributed.checkpoint``
would not do: they, and what ranks tell each other for them, are pickled.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from sparkdl_runner.checkpoint.directory.manifest import MODEL, OPTIMIZER
from sparkdl_runner.checkpoint.directory.shards import shards_state
from sparkdl_runner.checkpoint.directory.state_files import SUFFIX

_MODEL, _OPTIMIZER = "model.", "optimizer."


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    """The states of a model and of its optimizer in one, by ``model.NAME``, ``optimizer.NAME``."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    if model is None and optimizer is None:
        return {}
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    own = own_optimizer(optimizer)
    if own is not optimizer:
        _copy_settings(optimizer, own)
    optimizers = () if own is None else own
    of_model, of_optimizer = get_state_dict(model, optimizers, options=options)
    return {
        **{_MODEL + name: value for name, value in of_model.items()},
        **{_OPTIMIZER + name: value for name, value in of_optimizer.items()},
    }


def set_state(model: Any, optimizer: Any, state: Mapping[str, Any]) -> None:
    """Gives model and optimizer what ``state_of`` returned, with other values in it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    own = own_optimizer(optimizer)
    set_state_dict(
        model,
        () if own is None else own,
        model_state_dict=model_part(state),
        optim_state_dict=_part(state, _OPTIMIZER),
        options=StateDictOptions(flatten_optimizer_state_dict=True),
    )
    if own is not optimizer:
        _copy_settings(own, optimizer)


def own_optimizer(optimizer: Any) -> Any:
    """The optimizer of what this rank updates: of a ``ZeroRedundancyOptimizer``, that inside."""
    return optimizer.optim if is_partitioned(optimizer) else optimizer


def is_partitioned(optimizer: Any) -> bool:
    """Whether each rank has the state of a part of the parameters only, as in ZeRO-1."""
    # Looked up, not imported: a class that was not imported made no optimizer.
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return module is not None and isinstance(optimizer, module.ZeroRedundancyOptimizer)


def _copy_settings(source: Any, target: Any) -> None:
    """Copies learning rates and the like between ZeRO-1's optimizer and the one inside."""
    for of_source, of_target in zip(source.param_groups, target.param_groups, strict=True):
        of_target.update({name: of_source[name] for name in of_source if name != "params"})


def model_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own state, out of what ``state_of`` returned."""
    return _part(state, _MODEL)


def optimizer_names(names: Iterable[str]) -> set[str]:
    """The names of the optimizer's state, out of those of ``state_of``."""
    return {name for name in names if name.startswith(_OPTIMIZER)}


def _part(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    part = {name: value for name, value in state.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in part.items()}


def keys_of(state: Mapping[str, Any], ranks: int) -> tuple[set[str], set[str]]:
    """The tensors that this rank may write, as keys for ``own_part``.

    Args:
        state: As ``state_of`` returned it.
        ranks: How many there are.

    Returns:
        What no other rank has, and what others may have too: whole values, and shards over fewer
        ranks than there are.
    """
    own: set[str] = set()
    shared: set[str] = set()
    for name, value in state.items():
        if not _is_shard(value):
            shared.add(_key(name, value))
        elif _is_first_replica(value) and (value.to_local().numel() or not value.numel()):
            (own if value.device_mesh.size() == ranks else shared).add(_key(name, value))
    return own, shared


def parameters_of(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Shape and dtype of each tensor of the model, out of what ``shards.merge`` returned."""
    return {
        name: {"shape": tensor["shape"], "dtype": tensor["dtype"].removeprefix("torch.")}
        for name, tensor in model_part(metadata["tensors"]).items()
    }


def own_part(
    state: Mapping[str, Any], rank: int, own: Container[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The part of the tensors that this rank writes.

    Args:
        state: As ``state_of`` returned it.
        rank: This rank.
        own: Those of ``keys_of`` that are for this rank to write.

    Returns:
        The content of ``shards_state(rank)``, and its description for ``shards.merge``.
    """
    import torch

    path = f"{shards_state(rank)}{SUFFIX}"
    content: dict[str, Any] = {"tensors": {}, "values": {}}
    about: dict[str, Any] = {"tensors": {}, "values": {}}
    for name, value in state.items():
        key = _key(name, value)
        if key not in own:
            continue
        if not isinstance(value, torch.Tensor):
            content["values"][name] = value
            about["values"][name] = {"path": path, "key": name}
            continue
        offsets, block = _block(value)
        content["tensors"][key] = block
        shard = {"path": path, "key": key, "offsets": offsets, "sizes": list(block.shape)}
        shape, dtype = list(value.shape), str(value.dtype)
        about["tensors"][name] = {"shape": shape, "dtype": dtype, "shards": [shard]}
    return content, about


def files_needed(metadata: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """The files that ``fill`` will need.

    Args:
        metadata: What ``shards.merge`` returned.
        state: As ``state_of`` returned it; its names and shapes must be those of the checkpoint.
    """
    of_tensors = {shard["path"] for shard, _, _ in _overlaps(metadata, state)}
    of_values = {where["path"] for name, where in metadata["values"].items() if name in state}
    return sorted(of_tensors | of_values)


def fill(metadata: Mapping[str, Any], state: dict[str, Any], contents: Mapping[str, Any]) -> None:
    """Fills this rank's tensors, and replaces what is no tensor.

    Args:
        metadata: As for ``files_needed``.
        state: The same.
        contents: Of each of the files, by its path.
    """
    for shard, place, block in _overlaps(metadata, state):
        place.copy_(contents[shard["path"]]["tensors"][shard["key"]][block])
    for name, where in metadata["values"].items():
        if name in state:
            state[name] = contents[where["path"]]["values"][where["key"]]


def fill_from_whole(state: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Fills this rank's tensors, and replaces what is no tensor, from what was saved whole.

    Args:
        state: As ``state_of`` returned it; shapes and parameter groups must be those of the rest.
        saved: The states of the model, and of its optimizer if that is to be restored.
    """
    import torch

    whole = {_MODEL + name: value for name, value in saved[MODEL].items()}
    if OPTIMIZER in saved:
        whole |= _by_name(saved[OPTIMIZER], _parameters_of_groups(state))
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            state[name] = whole.get(name, value)
            continue
        offsets, block = _block(value)
        if name in whole:
            spans = list(zip(offsets, _ends(offsets, block.shape), strict=True))
            block.copy_(whole[name][_slices(spans, [0] * len(spans))])
        else:  # A parameter that had no gradient yet, and so no state.
            block.zero_()


def _parameters_of_groups(state: Iterable[str]) -> list[str]:
    """The names of the optimizer's parameters, in the order of its groups."""
    prefix = f"{_OPTIMIZER}param_groups."
    keys = (name.removeprefix(prefix) for name in state if name.startswith(prefix))
    return list(dict.fromkeys(key.rpartition(".")[0] for key in keys))


def _by_name(optimizer: Mapping[str, Any], parameters: Iterable[str]) -> dict[str, Any]:
    """An optimizer's whole state by the names of ``state_of``."""
    state = {}
    names = iter(parameters)
    for group in optimizer["param_groups"]:
        for number, name in zip(group["params"], names, strict=False):
            for key, value in optimizer["state"].get(number, {}).items():
                state[f"{_OPTIMIZER}state.{name}.{key}"] = value
            for key, value in group.items():
                state[f"{_OPTIMIZER}param_groups.{name}.{key}"] = value
    return state


def _overlaps(
    metadata: Mapping[str, Any], state: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Any, tuple[slice, ...]]]:
    """The overlap of shards with this rank's tensors.

    Yields:
        The shard, the part of this rank's tensor, and which block of the shard belongs there.
    """
    import torch

    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            continue
        offsets, block = _block(value)
        for shard in metadata["tensors"][name]["shards"]:
            begins = list(map(max, offsets, shard["offsets"]))
            ends = map(min, _ends(offsets, block.shape), _ends(shard["offsets"], shard["sizes"]))
            spans = list(zip(begins, ends, strict=True))
            if all(begin < end for begin, end in spans):
                yield shard, block[_slices(spans, offsets)], _slices(spans, shard["offsets"])


def _ends(offsets: Iterable[int], sizes: Iterable[int]) -> list[int]:
    return [offset + size for offset, size in zip(offsets, sizes, strict=True)]


def _slices(spans: Iterable[tuple[int, int]], offsets: Iterable[int]) -> tuple[slice, ...]:
    """Spans of the whole tensor, counted from where a block begins."""
    return tuple(
        slice(begin - offset, end - offset)
        for (begin, end), offset in zip(spans, offsets, strict=True)
    )


def _block(tensor: Any) -> tuple[list[int], Any]:
    """The offsets of this rank's block of a tensor, and the block; all of it if unsharded."""
    if not _is_shard(tensor):
        return [0] * tensor.ndim, tensor.detach()
    (chunk,) = tensor.__create_chunk_list__()
    return list(chunk.offsets), tensor.to_local().detach()


def _key(name: str, value: Any) -> str:
    """The name of a value, or of this rank's block of a tensor, among those of all ranks."""
    import torch

    if not isinstance(value, torch.Tensor):
        return name
    offsets, _ = _block(value)
    return f"{name}@{','.join(map(str, offsets))}"


def _is_shard(tensor: Any) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _is_first_replica(tensor: Any) -> bool:
    """Whether it is for this rank to write its block: other ranks may have the same one."""
    coordinate = tensor.device_mesh.get_coordinate()
    return coordinate is not None and not any(
        place.is_replicate() and position
        for place, position in zip(tensor.placements, coordinate, strict=True)
    )
