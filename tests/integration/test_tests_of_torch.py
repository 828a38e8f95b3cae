"""A few of torch's own tests as ranks; ``make foreign`` runs them all, beside torchrun."""

from __future__ import annotations

import pytest

from foreign import results
from foreign.launches import as_ranks
from foreign.suites import HERE, NUM_PROC

CHOSEN = (
    "test_get_rank",
    "test_all_reduce_sum",
    "test_DistributedDataParallel_requires_grad",
    "test_ddp_create_graph",
)

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def test_what_passes_under_torchrun_passes_as_ranks(tmp_path):
    file = HERE / "torch_distributed.py"
    as_ranks("torch")(tmp_path, NUM_PROC, ("tests", str(file), "-k", " or ".join(CHOSEN)))
    found = results.read(tmp_path, NUM_PROC)
    assert [found.get(f"{file.name}::TestRanks::{name}") for name in CHOSEN] == ["passed"] * 4
