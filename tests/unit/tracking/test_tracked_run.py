"""What the driver makes of what it hears while a run goes on: MLflow is not asked."""

from __future__ import annotations

from types import SimpleNamespace

from sparkdl_runner.tracking.tracked_run import TrackedRun


def listening(said: list[object], own: list[object]) -> SimpleNamespace:
    run = SimpleNamespace(
        _run_name="of the driver",
        _say=said.append,
        _own=own,
        _ranks=SimpleNamespace(hear=lambda world, report: []),
    )
    run._say_own = lambda: TrackedRun._say_own(run)
    return run


def test_parameters_of_the_function_come_before_our_own() -> None:
    for first in (["param", "lr", "0.1"], ["metric", "loss", 1.0, 0, 1, {}]):
        said: list[object] = []
        own: list[object] = [["param", "num_proc", "2"]]
        run = listening(said, own)
        for entries in ([], [["tag", "a", "1"]], [first], [["param", "epochs", "3"]]):
            TrackedRun.progress(run, None, {"entries": entries})
        assert said == [[["tag", "a", "1"]], [first], own, [["param", "epochs", "3"]]]


def test_the_name_that_rank_0_gave_the_run_last_is_its_name() -> None:
    said: list[object] = []
    run = listening(said, [])
    renamed = [["tag", "mlflow.runName", name] for name in ("first", "last")]
    for entries, name in (
        ([["param", "a", "1"]], "of the driver"),
        (renamed[:1], "first"),
        (renamed, "last"),
        ([], "last"),
    ):
        TrackedRun.progress(run, None, {"entries": entries})
        assert run._run_name == name
    assert said == [[["param", "a", "1"]], renamed[:1], renamed]


def test_a_trouble_with_mlflow_is_new_once() -> None:
    run = SimpleNamespace(_told_of_trouble=0.0)
    new = [TrackedRun._trouble_is_new(run, since) for since in (5.0, 5.0, 9.0, 9.0)]
    assert new == [True, False, True, False]
