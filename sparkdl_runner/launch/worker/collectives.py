"""The collectives that this process has called last, as torch or Horovod knows them.

torch has a flight recorder: of NCCL from 2.5 on, of gloo from 2.9 on. Horovod's report of stalled
tensors names no rank over gloo and so is never printed: its frames tell where it waits.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

from sparkdl_runner.base.thread_frames import current_frames

# The root of a broadcast waits for nobody, and so may be ahead of the others.
_MOST_OF_A_GROUP, _MOST_GROUPS, _MOST_CHARACTERS = 8, 16, 120
# Ranks may give these tensors of different shapes (``Op.match`` of torch's flight recorder).
_UNEVEN = ("all_to_all", "all_gather_v", "reduce_scatter_v", "scatter")
_C10D, _DUMPS = "torch._C._distributed_c10d", ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_HOROVOD = ("/horovod/torch/mpi_ops.py", "/horovod/torch/optimizer.py")

_counts: list[bytes] = []
_calls: list[dict[str, Any]] | None = None


def record() -> None:
    """Has torch's flight recorder record where it would not, unless the user has said how much."""
    # Later ones record by default, and warn of this name.
    if not hasattr(sys.modules.get(_C10D), _DUMPS[1]) and "TORCH_FR_BUFFER_SIZE" not in os.environ:
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")


def last_calls(thread: int) -> list[dict[str, Any]] | None:
    """The newest calls of each group, in values of JSON. Horovod's are looked for in a thread.

    None if torch has called more since this was asked last: to look at all of them costs 0.1 s.
    Each says what was called (``call``), in which group (``where``, and its ``ranks`` if it has not
    all), the ``number`` that the call has there (0 where none is counted), and if it is ``done``.
    """
    stack = [frame for frame, _ in traceback.walk_stack(current_frames()[thread])]
    return _of_horovod(stack) or _of_torch()


def call_of(error: BaseException) -> str:
    """The call of Horovod that raised an error, with this rank's own tensor."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return "".join(call["call"] for call in _of_horovod(frames[::-1]))


def _of_torch() -> list[dict[str, Any]] | None:
    global _counts, _calls
    module = sys.modules.get(_C10D)
    dumps = [getattr(module, name) for name in _DUMPS if hasattr(module, name)]
    before, _counts = _counts, [dump(includeCollectives=False) for dump in dumps]
    if _counts != before:
        _calls = None
    elif _calls is None:
        _calls = _newest(
            [entry for dump in dumps for entry in json.loads(dump()).get("entries", ())]
        )
    return _calls


def _newest(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, dict[int, dict[str, Any]]] = {}
    for entry in reversed(entries):
        library, _, call = entry["profiling_name"].partition(":")
        name, description = entry["process_group"]
        seen, number = groups.setdefault(f"{library} {name}", {}), entry["collective_seq_id"]
        if entry["is_p2p"] or number in seen or len(seen) == _MOST_OF_A_GROUP:
            continue
        shapes = zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
        of = ", ".join(f"{kind} {size}" for kind, size in shapes if not call.startswith(_UNEVEN))
        # All groups of a mesh's dimension have one description.
        plain = {"": name, "undefined": name, "default_pg": description}
        where = plain.get(description, f"{description} ({name})")
        done = entry["retired"] or entry["state"] == "completed"
        seen[number] = _call(f"{call}({of})", f"group {where}", _ranks_of(name), number, done)
    return [call for seen in list(groups.values())[:_MOST_GROUPS] for call in seen.values()]


def _ranks_of(group: str) -> list[int] | None:
    world = sys.modules["torch.distributed"].distributed_c10d._world
    ranks = [world.pg_group_ranks[one] for one, name in world.pg_names.items() if name == group]
    return sorted(ranks[0]) if ranks and len(ranks[0]) < int(os.environ["WORLD_SIZE"]) else None


def _of_horovod(stack: Sequence[FrameType]) -> list[dict[str, Any]]:
    """The call that the frames are in: ``allreduce_(tensor, name, process_set)`` and its like."""
    frames = [frame for frame in stack if frame.f_code.co_filename.endswith(_HOROVOD)]
    if not frames:
        return []
    values: dict[str, Any] = {}
    for frame in frames:
        values |= frame.f_locals
    own, tensor = values.get("self"), values.get("tensor", values.get("p"))  # The optimizer's.
    name = values.get("name") or getattr(own, "_parameter_names", {}).get(tensor)
    of = f"{getattr(tensor, 'dtype', '')} {list(getattr(tensor, 'shape', ()))}"
    call = f"{frames[-1].f_code.co_name} {name or values.get('handle')}({of})"
    chosen: Any = values.get("process_set") or getattr(own, "process_set", None)
    ranks = list(chosen.ranks) if getattr(chosen, "process_set_id", 0) else None
    return [_call(call, f"process set {ranks}" if ranks else "all ranks", ranks, 0, False)]


def _call(call: str, where: str, ranks: object, number: int, done: bool) -> dict[str, Any]:
    named = {"call": call[:_MOST_CHARACTERS], "where": where[:_MOST_CHARACTERS]}
    return {**named, "ranks": ranks, "number": number, "done": done}
