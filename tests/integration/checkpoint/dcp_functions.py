"""A training by FSDP2 that saves by ``torch.distributed.checkpoint``; ranks run it by name."""

from __future__ import annotations

from typing import Any


def train_by_dcp(url: str, options: dict[str, Any], steps: int) -> Any:
    """Trains from the newest checkpoint to ``steps``, and saves the last one in the background.

    Returns:
        The step that was loaded, and the state of model and optimizer, whole.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from sparkdl_runner.checkpoint.dcp import DcpWriter, load_newest

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(7, 13), torch.nn.BatchNorm1d(13), torch.nn.Linear(13, 5)
    )
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    loaded = load_newest(state, url, storage_options=options)
    if loaded is not None:
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    for _ in range(loaded or 0, steps):
        model(torch.randn(8, 7)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    if loaded != steps:
        writer = DcpWriter(url, storage_options=options)
        state = {"model": of_model, "optimizer": of_optimizer}
        dcp.async_save(state, storage_writer=writer, checkpoint_id=f"step-{steps}").result()
    whole = StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True)
    found = get_state_dict(model, optimizer, options=whole)
    return loaded, {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for part in found
        for name, value in part.items()
    }
