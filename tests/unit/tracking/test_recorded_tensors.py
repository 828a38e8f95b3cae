"""Metrics that are tensors. In a file of its own: the other half of ``make quick`` has no torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparkdl_runner.tracking.rank.recorder import Recorder


def test_a_tensor_of_one_number_is_that_number() -> None:
    reports: list[dict[str, Any]] = []
    recorder = Recorder(0, reports.append)
    values = {"loss": torch.tensor(2.0, requires_grad=True), "norm": torch.tensor([4.0])}
    recorder.log_metrics(3, values, samples=None, epoch=None, total_steps=None)
    recorder.close()
    found = {entry[1]: entry[2] for report in reports for entry in report["entries"]}
    assert found == {"loss": 2, "norm": 4}


def test_a_tensor_of_several_numbers_is_refused_where_it_is_said() -> None:
    recorder = Recorder(0, lambda _: None)
    with pytest.raises(TypeError, match=r"the metric 'loss' at step 4 is .* expected a number"):
        recorder.log_metrics(4, {"loss": torch.ones(2)}, samples=None, epoch=None, total_steps=None)
    recorder.close()
