"""Workers that start while a train job converts its data."""

from __future__ import annotations

from typing import Any

import pytest

from sparkdl_runner.jobs.training import early_workers
from sparkdl_runner.jobs.training.settings import TrainSettings


@pytest.mark.parametrize(
    ("runner", "seconds"), [({}, [60]), ({"spare_seconds": 5}, [5]), ({"spare_seconds": 0}, [])]
)
def test_each_rank_gets_one_unless_no_spares_are_wanted(
    monkeypatch: pytest.MonkeyPatch, runner: dict[str, Any], seconds: list[float]
) -> None:
    started = []
    monkeypatch.setattr(
        early_workers, "start_spares", lambda *asked, seconds: started.append((asked[:2], seconds))
    )
    settings = TrainSettings(
        function="bowl:train", num_proc=3, backend="horovod", run_config=runner
    )
    early_workers.start_early(settings)
    assert started == [((3, "horovod"), one) for one in seconds]
