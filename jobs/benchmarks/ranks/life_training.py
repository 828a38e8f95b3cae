"""A training for ``life``.

``python -m benchmarks.ranks.life_training FOLDER NAME STEPS STEP_SECONDS``
"""

from __future__ import annotations

import json
import sys
from typing import Any

RANKS, BATCH = 2, 8


def train(checkpoint_url: str, steps: int, step_seconds: float) -> dict[str, Any]:
    """Trains in all ranks, with a checkpoint every five steps; returns a digest of the weights."""
    import hashlib
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist

    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.tracking import log_metrics

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
    ranks = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with CheckpointManager(checkpoint_url, every_steps=5, keep_last=2) as checkpoints:
        restored = checkpoints.restore(model, optimizer)
        first = restored.step if restored else 0
        for step in range(first + 1, steps + 1):
            optimizer.zero_grad()
            loss = ranks(torch.randn(BATCH, 16)).square().mean()
            loss.backward()
            optimizer.step()
            time.sleep(step_seconds)
            log_metrics(step, loss=loss.item())
            if dist.get_rank() == 0:
                Path(f"{checkpoint_url}-begun").touch()
            if checkpoints.due(step):
                checkpoints.save(step, model, optimizer)
    dist.destroy_process_group()
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return {"weights": hashlib.sha256(weights).hexdigest(), "first": first}


def main() -> None:
    """Runs it under its name, and prints what it returned."""
    from sparkdl_runner import DistributedRunner, RunConfig
    from sparkdl_runner.tracking import Tracking

    folder, name, steps, step_seconds = sys.argv[1:]
    tracking = Tracking(
        tracking_uri=f"sqlite:///{folder}/mlflow.db", report=False, system_metrics=False
    )
    runner = DistributedRunner(num_proc=-RANKS, run_config=RunConfig(name=name, tracking=tracking))
    value = runner.run(train, f"{folder}/{name}", int(steps), float(step_seconds))
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
