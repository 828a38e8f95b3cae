"""What every run says of itself, and what it need not say."""

from __future__ import annotations

from sparkdl_runner import RunConfig
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.run.lease import Lease
from sparkdl_runner.tracking.run.parameters_and_tags import parameters


def test_settings_that_nobody_chose_are_no_parameters() -> None:
    plain = parameters(num_proc=4, backend="torch", settings=RunConfig().chosen())
    assert plain == [["param", "num_proc", "4"], ["param", "backend", "torch"]]
    chosen = RunConfig(max_restarts=2, hang_timeout_seconds=None, tracking=Tracking(run_name="x"))
    assert parameters(num_proc=4, backend="torch", settings=chosen.chosen())[2:] == [
        ["param", "hang_timeout_seconds", "None"],
        ["param", "max_restarts", "2"],
    ]


def test_pages_do_not_show_who_drives() -> None:
    assert all(name.startswith("mlflow.") for _, name, _ in Lease().entries())
