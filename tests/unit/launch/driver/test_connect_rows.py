from __future__ import annotations

import os
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl_runner.launch.driver.connect import rank_rows
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLDS = assign_ranks(
    [
        Peer(partition=number, host="h", host_key="k", address="::1", interface="lo")
        for number in range(4)
    ],
    backend="torch",
)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 4_000), max_size=4), chunk_bytes=st.integers(900, 5_000))
def test_chunks_of_all_ranks_come_together(sizes, chunk_bytes):
    outcomes = [
        Outcome(world=world, status=Status.RETURNED, ended_at=1.0, payload=os.urandom(size))
        for world, size in zip(WORLDS.values(), sizes, strict=False)
    ]
    read: list[int] = []
    rows = []
    for outcome in outcomes:
        # Spark drops a Python process whose task has not read its whole input.
        batches = (read.append(number) for number in range(2))
        task = rank_rows.RankRows(lambda _, own=outcome: iter([own]), chunk_bytes)
        for batch in task(batches):
            rows += [SimpleNamespace(**row) for row in batch.to_pylist()]
    assert rank_rows.outcomes_of(rows) == outcomes
    assert len(read) == 2 * len(outcomes)
    assert all(len(row.chunk) <= chunk_bytes for row in rows)


def test_a_rank_whose_start_was_given_up_has_no_row():
    assert list(rank_rows.RankRows(lambda _: iter(()))([])) == []
    assert rank_rows.outcomes_of([]) == []
