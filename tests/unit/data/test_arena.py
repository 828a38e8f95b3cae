"""Memory for gathered rows is used again."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from sparkdl_runner.data.read.arena import Arena


def test_a_gather_takes_new_memory_only_for_more_rows() -> None:
    arena, group = SimpleNamespace(_scratch={}), SimpleNamespace(rows=np.zeros((9, 3), np.int32))
    first, fewer, more = (Arena._scratch_for(arena, group, count) for count in (5, 4, 6))
    assert [one.shape for one in (first, fewer, more)] == [(5, 3), (4, 3), (6, 3)]
    assert np.shares_memory(first, fewer)
    assert not np.shares_memory(first, more)
    assert more.dtype == np.int32
