"""Runs in each rank of a preflight: measures the rank, and in a host's first rank the host."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

from sparkdl_runner.launch.preflight import host_facts
from sparkdl_runner.launch.preflight.group import Group
from sparkdl_runner.rank.control_group import cpu_limit, throttled_seconds
from sparkdl_runner.rank.world import current_world

SECONDS = {"quick": 2, "full": 20}
"""How long it takes, about."""
_ROUND_SECONDS = 0.3
_CPU_SIDE, _GPU_SIDE, _COPIED_BYTES = 384, 8192, 64 << 20


def measure(level: str) -> dict[str, Any]:
    """Measures this rank and, in a host's first rank, the host.

    Returns:
        The rank's place; ``rates`` by what was measured, in FLOP or bytes a second; ``faults``;
        what is to be the ``same`` everywhere; and what ``Group.measure`` returns.
    """
    started, began, seconds = time.time(), time.monotonic(), SECONDS[level]
    world, own, faults = current_world(), dict[str, Any](), list[str]()
    health = host_facts.GpuHealth() if world.local_rank == 0 else None
    group = Group(world) if world.size > 1 and world.backend in ("torch", "horovod") else None
    rates = {}
    if importlib.util.find_spec("torch") is not None:  # TensorFlow may be there without it.
        rates = _rates(3 * seconds // 2, (lambda: None) if group is None else group.meet)
    if group is not None:
        own = group.measure(seconds << 20, 3 + seconds // 4)
        group.close()
    if pairs := own.get("pairs"):
        rates["exchange with other hosts"] = max(pair["bandwidth"] for pair in pairs.values())
    if health is not None:
        disk, faults = host_facts.disk(seconds / 10)
        rates, faults = rates | disk, faults + health.faults()
    own |= {name: getattr(world, name) for name in ("rank", "host_rank", "place")}
    own |= {"rates": rates, "same": host_facts.same_everywhere(), "faults": faults}
    return own | {"started": started, "ended": time.time(), "seconds": time.monotonic() - began}


def _rates(rounds: int, meet: Callable[[], object]) -> dict[str, float]:
    """The best of rounds of matrices, which ranks begin together; and of copies to and from a GPU.

    Of a CPU, one core is measured by processor time: time for which others have the core does not
    count, as every host has such moments. What a control group refuses does, as long as it lasts.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    torch.set_num_threads(1)
    if has_gpu:
        matrix = torch.rand(_GPU_SIDE, _GPU_SIDE, device="cuda", dtype=torch.half)
    else:
        matrix = torch.rand(_CPU_SIDE, _CPU_SIDE)
    clock = time.perf_counter if has_gpu else time.thread_time
    out, best = torch.mm(matrix, matrix), 0.0
    refused, used = throttled_seconds(), time.thread_time()
    for _ in range(rounds):
        meet()
        count, began, end = 0, clock(), time.perf_counter() + _ROUND_SECONDS
        while time.perf_counter() < end:
            torch.mm(matrix, matrix, out=out)
            if has_gpu:
                torch.cuda.synchronize()
            count += 1
        best = max(best, 2 * len(matrix) ** 3 * count / (clock() - began))
    if has_gpu:
        return {"matrices": best, **_copies()}
    used, refused = time.thread_time() - used, throttled_seconds() - refused
    granted = used / min(used + refused, rounds * _ROUND_SECONDS)
    return {"matrices": best * min(1.0, granted, cpu_limit() or 1.0)}


def _copies() -> dict[str, float]:
    import torch

    host, rates = torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=True), {}
    copy = host.cuda()
    for way, target, source in (("to", copy, host), ("from", host, copy)):
        took = []
        for _ in range(5):
            began = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - began)
        rates[f"copies {way} the GPU"] = _COPIED_BYTES / min(took)
    return rates
