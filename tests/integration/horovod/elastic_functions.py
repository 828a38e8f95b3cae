"""Code for Horovod's elastic mode, as one writes it for Horovod."""

from __future__ import annotations

import os
import threading

import horovod.torch as hvd
import pytest
import torch
from horovod.common.elastic import notification_manager

from sparkdl_runner import current_world

ROWS, BATCH, EPOCHS = 96, 4, 2


def train(fail_at):
    """Each rank's rows, in their order, and the weights.

    Args:
        fail_at: The step after which rank 1 ends in the first attempt; None for never.
    """
    hvd.init()
    torch.manual_seed(1)
    rows = torch.utils.data.TensorDataset(torch.randn(ROWS, 4), torch.arange(ROWS))
    model = torch.nn.Linear(4, 1)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(adam, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(rows)
    # With a generator of its own, to begin anew amid an epoch draws no number from dropout's.
    loader = torch.utils.data.DataLoader(
        rows, batch_size=BATCH, sampler=sampler, generator=torch.Generator()
    )
    resets = []

    @hvd.elastic.run
    def loop(state):
        for state.epoch in range(state.epoch, EPOCHS):  # noqa: B020 - as in Horovod's examples
            for number, (inputs, ids) in enumerate(loader):
                optimizer.zero_grad()
                torch.nn.functional.dropout(model(inputs), 0.3).square().mean().backward()
                optimizer.step()
                state.step += 1
                state.seen.append(hvd.allgather(ids, name="ids").tolist())
                sampler.record_batch(number, BATCH)
                if state.step == fail_at and hvd.rank() == 1 and current_world().attempt == 0:
                    os._exit(7)
                if number % 3 == 2:
                    state.commit()
            sampler.set_epoch(state.epoch + 1)

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0, seen=[])
    state.register_reset_callbacks([lambda: resets.append(state.step)])
    loop(state)
    notification_manager.init()  # As Horovod's own loop does, and perhaps a library.
    serving = [one.name for one in threading.enumerate() if "serve_forever" in one.name]
    assert notification_manager._service is None
    assert not serving
    return {
        "seen": state.seen,
        "weights": [one.tolist() for one in model.parameters()],
        "resets": resets,
    }


def refuse():
    """Calls what this build of Horovod has not; Horovod's own loop would try it for ever."""
    hvd.init()
    with pytest.raises(ValueError, match="expected input tensor to be on GPU"):
        hvd.SyncBatchNorm(2)(torch.ones(3, 2))
    hvd.elastic.run(lambda state: hvd.allreduce(torch.ones(2), op=hvd.Adasum))(
        hvd.elastic.TorchState(epoch=0)
    )
