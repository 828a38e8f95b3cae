"""States of orders that earlier versions began go on as they would have."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from parquet_sets import load, numbered, write_groups

from sparkdl_runner.data.order.plan import VERSION

EARLIER: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "earlier_orders.json").read_text()
)


@pytest.mark.parametrize("case", EARLIER)
def test_a_state_of_version_2_goes_on_with_the_same_rows(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    """The digests are of the rows that the version which wrote the state gave."""
    rows = sum(map(sum, case["groups"]))
    texts = pa.array(["x" * (row * 7 % 13) for row in range(rows)])
    table = numbered(rows).append_column("text", texts)
    manifest = write_groups(tmp_path, table, case["groups"])
    digest = hashlib.sha256()
    ranks = case["world_size"]
    for rank in range(ranks):
        shard = {"cur_shard": rank, "shard_count": ranks, "num_epochs": 2}
        with load(tmp_path, manifest, **shard, **case["arguments"]) as loader:
            assert loader.state_dict()["version"] == VERSION
            loader.load_state_dict({**case["state"], "fingerprint": manifest.fingerprint})
            assert loader.state_dict()["version"] == 2
            for batch in loader:
                ids = batch["id"].numpy()
                if "row_mask" in batch:
                    ids = ids[batch["row_mask"].numpy()]
                digest.update(ids.astype("<i8").tobytes())
    assert digest.hexdigest()[:32] == case["digest"]
