"""The training of ``goodput``, and of killed drivers: the same steps here and under Ray Train.

It writes down each step that it makes, so that steps that were made twice are known.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS, BATCH = 2, 8
BATCHES = {"batch of a rank": BATCH, "global batch": RANKS * BATCH}
FACTS = {"ranks": RANKS, "scaling": "weak", **BATCHES}


def training(*, under_ray: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Makes the function of a rank. Nested functions travel by value, to either launcher.

    Args:
        under_ray: Whether Ray Train starts it, and keeps its checkpoints.
    """

    def train(given: dict[str, Any]) -> dict[str, Any]:
        """Returns the step that it went on from, and a digest of the weights."""
        import hashlib
        import os
        import time

        import torch
        import torch.distributed as dist

        folder = Path(given["folder"])
        if not under_ray:
            from sparkdl_runner.tracking import log_metrics

            dist.init_process_group("gloo")
        rank = dist.get_rank()
        torch.manual_seed(rank)
        layers = [torch.nn.Linear(256, 256), torch.nn.Dropout(), torch.nn.Linear(256, 1)]
        model = torch.nn.Sequential(*layers)
        ranks = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters())
        first, save, close = (_with_ray if under_ray else _with_manager)(model, optimizer, given)
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
        with open(folder / f"steps-{rank}", "a", buffering=1) as steps:
            for step in range(first + 1, given["steps"] + 1):
                if step == given["steps"]:
                    # A busy machine may strike late, and would find no training.
                    while not (folder / "all-struck").exists():
                        time.sleep(0.01)
                began = time.time()
                optimizer.zero_grad()
                loss = ranks(torch.randn(BATCH, 256)).square().mean()
                loss.backward()
                optimizer.step()
                time.sleep(given["step_seconds"])
                if not under_ray:
                    log_metrics(step, loss=loss.item())
                steps.write(f"{os.getpid()} {step} {began} {time.time()}\n")
                if step % given["every"] == 0:
                    save(step)
        close()
        weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
        return {"first": first, "weights": hashlib.sha256(weights).hexdigest()}

    def _with_manager(model: Any, optimizer: Any, given: dict[str, Any]) -> tuple[int, Any, Any]:
        from sparkdl_runner.checkpoint import CheckpointManager

        manager = CheckpointManager(f"{given['folder']}/checkpoints", every_steps=given["every"])
        restored = manager.restore(model, optimizer)
        first = restored.step if restored else 0
        return first, lambda step: manager.save(step, model, optimizer), manager.close

    def _with_ray(model: Any, optimizer: Any, given: dict[str, Any]) -> tuple[int, Any, Any]:
        import tempfile

        import ray.train
        import torch

        state: dict[str, Any] = {"step": 0}
        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                state = torch.load(f"{folder}/state.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])

        def save(step: int) -> None:
            if ray.train.get_context().get_world_rank():
                ray.train.report({"step": step})
                return
            with tempfile.TemporaryDirectory() as folder:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step}, f"{folder}/state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
                ray.train.report({"step": step}, checkpoint=checkpoint)

        return state["step"], save, lambda: None

    return train
