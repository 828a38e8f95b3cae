"""The ranks and readers of ``storage``; a checkpoint of step N holds only Ns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Options = Mapping[str, Any] | None
_LAYERS = 4


def train(
    checkpoint_url: str,
    options: Options,
    *,
    steps: int,
    step_seconds: float,
    every_seconds: float,
    numbers: int,
    failing_share: float = 0.0,
) -> dict[str, Any]:
    """Fills a model with the number of each step, and saves it.

    Args:
        checkpoint_url: Where.
        options: Of the storage.
        steps: The most; fewer if the training is asked to stop.
        step_seconds: What a step takes.
        every_seconds: Between two checkpoints, of which two stay.
        numbers: In the model.
        failing_share: Of the writes of this rank to a local folder, which fail before they begin.

    Returns:
        The steps, the checkpoints, the seconds of the whole loop with its last save, by the clock
        and of rank 0's processor, and those that it spent in ``save`` and ``close``.
    """
    import time

    import torch
    import torch.distributed as dist

    from sparkdl_runner.checkpoint import CheckpointManager, should_stop

    dist.init_process_group("gloo")
    failed = fail_writes(failing_share) if failing_share else []
    layers = [torch.nn.Linear(1, numbers // _LAYERS, bias=False) for _ in range(_LAYERS)]
    model = torch.nn.Sequential(*layers)
    saves = step = 0
    waited = 0.0
    dist.barrier()
    began, used = time.monotonic(), time.process_time()
    with CheckpointManager(
        checkpoint_url, every_seconds=every_seconds, keep_last=2, storage_options=options
    ) as checkpoints:
        for step in range(1, steps + 1):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(step)
            time.sleep(step_seconds)
            stop = should_stop()
            if checkpoints.due(step) or stop or step == steps:
                at = time.monotonic()
                checkpoints.save(step, model, extra={"step": step})
                waited += time.monotonic() - at
                saves += 1
            if stop:
                break
        at = time.monotonic()
    waited += time.monotonic() - at
    seconds, used = time.monotonic() - began, time.process_time() - used
    dist.destroy_process_group()
    return {
        "steps": step,
        "saves": saves,
        "seconds": seconds,
        "processor_s": used,
        "waited": waited,
        "failed_writes": len(failed),
    }


def fail_writes(share: float) -> list[str]:
    """Makes some writes of this process to local disk fail; returns the list of them."""
    import errno
    import random

    from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage

    failed: list[str] = []
    write, draw = LocalStorage.write, random.Random()

    def may_fail(self: LocalStorage, name: str, content: bytes) -> None:
        if draw.random() < share:
            failed.append(name)
            raise OSError(errno.ETIMEDOUT, "the mount does not answer", name)
        write(self, name, content)

    LocalStorage.write = may_fail  # type: ignore[method-assign]
    return failed


def load(checkpoint_url: str, options: Options) -> dict[str, Any]:
    """Loads the newest checkpoint in this process.

    Returns:
        Its step; ``is_torn``, whether anything in it is of another step; and the seconds.
    """
    import time

    from sparkdl_runner.checkpoint import Checkpoint

    began = time.monotonic()
    try:
        found = Checkpoint.load(checkpoint_url, storage_options=options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "is_torn": False}
    values = [
        value for tensor in (found.model or {}).values() for value in tensor.unique().tolist()
    ]
    is_torn = {found.extra["step"], *values} != {found.step} or len(values) != _LAYERS
    return {"step": found.step, "is_torn": is_torn, "seconds": time.monotonic() - began}
