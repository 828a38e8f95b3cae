"""A function and a backend that do not go together: an error that says which to choose."""

from __future__ import annotations

import pytest
import rank_functions

from sparkdl_runner import DistributedRunner, WorkerFailedError

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


@pytest.mark.parametrize(
    ("train", "wrong", "right"),
    [
        (rank_functions.train_with_horovod, "torch", "horovod"),
        (rank_functions.train_with_ddp, "horovod", "torch"),
    ],
)
def test_the_error_names_the_backend_to_choose(train, wrong, right):
    with pytest.raises(WorkerFailedError) as raised:
        DistributedRunner(num_proc=-2, backend=wrong).run(train)
    said = str(raised.value)
    assert f"was called in a rank of the {wrong} backend" in said
    assert f'DistributedRunner(backend="{right}")' in said
