"""A training that has a name: whoever calls it next finds its run."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.rank.process_identity import started_ticks
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.run.opening import lease, named
from sparkdl_runner.tracking.run.opening.lease import Lease
from sparkdl_runner.tracking.run.opening.named import NamedRun, Work, returned_entry

mlflow = pytest.importorskip("mlflow")

pytestmark = pytest.mark.one_lane

WORK = Work(function="shop:train", code="c1")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]) -> str:
    return new_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def client(store: str) -> Any:
    return mlflow.MlflowClient(tracking_uri=store)


def found(
    store: str, name: str, work: Work = WORK, *, rerun_finished: bool = False, **more: Any
) -> NamedRun:
    tracking = Tracking(tracking_uri=store, **more)
    return NamedRun(tracking, name, work, rerun_finished=rerun_finished)


def over(client: Any, run_id: str, status: str = "FINISHED") -> None:
    client.set_terminated(run_id, status)


@pytest.fixture
def other_driver() -> Iterator[Lease]:
    """Of a process that lives."""
    process = subprocess.Popen(["sleep", "600"])
    holder = Lease()
    ticks = started_ticks(process.pid) or 0
    holder.own = dataclasses.replace(holder.own, pid=process.pid, started_ticks=ticks)
    yield holder
    process.kill()
    process.wait()


def take(client: Any, run_id: str, holder: Lease, at: float | None = None) -> None:
    for _, name, text in holder.entries(at):
        client.set_tag(run_id, name, text)


def test_the_first_call_makes_a_run_and_the_next_goes_on_with_it(store: str, client: Any) -> None:
    one = found(store, "first", tags={"team": "a"})
    assert (one.run_id, one.is_finished, one.tag("team")) == (None, False, None)
    opened = one.open()
    run = client.get_run(opened.run.info.run_id)
    assert run.info.run_name == "first"
    tags = {name: run.data.tags[name] for name in ("team", named.TRAINING_TAG, named.FUNCTION_TAG)}
    assert tags == {"team": "a", named.TRAINING_TAG: "first", named.FUNCTION_TAG: "shop:train"}
    assert one.lease.held_by_another(run.data.tags) is None
    over(client, run.info.run_id, "FAILED")
    client.set_tag(run.info.run_id, "sparkdl_runner.attempt", "2")
    again = found(store, "first")
    assert again.run_id == run.info.run_id
    assert again.tag("team") == "a"
    assert again.open().first_attempt == 3
    assert client.get_run(run.info.run_id).info.status == "RUNNING"
    assert found(store, "firs").run_id is None


def test_a_secret_in_a_name_is_hidden_and_the_run_is_found_again(
    store: str, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "hunter2-hunter2"

    def found_with_secret() -> NamedRun:
        tracking, name = Tracking(tracking_uri=store), f"of-{secret}"
        return NamedRun(tracking, name, WORK, rerun_finished=False, secrets=[secret])

    run_id = found_with_secret().open().run.info.run_id
    client.set_tag(run_id, *returned_entry(1)[1:])
    assert found_with_secret().returned({}, {}) == 1
    run = client.get_run(run_id)
    assert (run.info.run_name, run.data.tags[named.TRAINING_TAG]) == ("of-redacted", "of-redacted")
    said = capsys.readouterr().out
    assert "'of-redacted' finished" in said
    assert secret not in f"{run.data} {run.info} {said}"


def test_a_new_run_is_called_as_the_settings_say_or_else_as_the_training(store: str) -> None:
    assert found(store, "n1").open().run.info.run_name == "n1"
    assert found(store, "n2", run_name="set").open().run.info.run_name == "set"


def test_one_that_has_finished_gives_its_value_again(
    store: str, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = found(store, "done").open().run.info.run_id
    _, name, text = returned_entry({"loss": 0.5})
    client.set_tag(run_id, name, text)
    # Its driver was lost before it ended the run.
    one = found(store, "done")
    assert one.is_finished
    assert one.returned({}, {}) == {"loss": 0.5}
    assert client.get_run(run_id).info.status == "FINISHED"
    said = capsys.readouterr().out
    assert "'done' finished at 20" in said
    assert "its value is returned again" in said
    assert found(store, "done", rerun_finished=True).run is None
    client.set_tag(run_id, name, returned_entry(object())[2])
    assert found(store, "done").returned({}, {}) is None
    assert "its value (object) was not kept, and None is returned" in capsys.readouterr().out


def test_a_finished_one_tells_what_a_call_asks_for_otherwise(
    store: str, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = found(store, "asked").open().run.info.run_id
    # A later attempt had other values: MLflow keeps the first under its name.
    for name, text in {
        "epochs": "3",
        "lr": "0.1",
        "attempt_2/epochs": "5",
        "attempt_10/epochs": "7",
        "password": "[redacted]",
    }.items():
        client.log_param(run_id, name, text)
    client.set_tag(run_id, *returned_entry(1)[1:])
    asked = {"epochs": 7, "lr": 0.1, "password": "hush", "new": 1}
    assert found(store, "asked").returned(asked, {}) == 1
    assert capsys.readouterr().out.endswith(
        "is returned again. To train anew, set rerun_finished.\n"
    )
    assert found(store, "asked").returned({**asked, "epochs": 3}, {}) == 1
    assert capsys.readouterr().out.endswith(
        "is returned again. This call asks for another training: 'epochs' was 7 and is now 3. "
        "To train anew, set rerun_finished, or give it another name.\n"
    )


def test_what_an_earlier_version_kept_is_found(
    store: str, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = found(store, "early").open().run.info.run_id
    client.delete_tag(run_id, named.CODE_TAG)
    client.set_tag(run_id, "sparkdl_runner.function_digest", "of then")
    over(client, run_id, "FAILED")
    assert not found(store, "early").is_finished
    found(store, "early").open()
    assert "code of shop:train has changed" in capsys.readouterr().out
    client.set_tag(run_id, "sparkdl_runner.returned", '{"value": 7}')
    over(client, run_id)
    assert found(store, "early").is_finished
    assert found(store, "early").returned({}, {}) == 7


def test_a_value_is_kept_where_a_tag_can_hold_it() -> None:
    assert json.loads(returned_entry([1, None])[2]) == {"value": [1, None]}
    fits = "x" * (5000 - len('{"value": ""}'))
    assert json.loads(returned_entry(fits)[2]) == {"value": fits}
    assert json.loads(returned_entry(fits + "x")[2]) == {"lost": "str"}
    assert returned_entry({1, 2}) == ["tag", named.RETURNED_TAG, '{"lost": "set"}']


def test_another_function_has_another_name_and_changed_code_is_told(
    store: str, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = found(store, "same").open().run.info.run_id
    over(client, run_id, "FAILED")
    with pytest.raises(LaunchError, match=f"trains shop:train .MLflow run {run_id}., and this"):
        found(store, "same", Work(function="shop:other", code=None))
    capsys.readouterr()
    found(store, "same").open()
    assert "has changed" not in capsys.readouterr().out
    over(client, run_id, "FAILED")
    changed = found(store, "same", Work(function="shop:train", code="c2"))
    changed.open()
    assert "code of shop:train has changed since 'same' last began" in capsys.readouterr().out
    tags = {name: text for _, name, text in changed.entries()}
    assert tags[named.CODE_TAG] == "c2"


def test_what_another_driver_runs_is_left_to_it(
    store: str, client: Any, other_driver: Lease
) -> None:
    run_id = found(store, "held").open().run.info.run_id
    take(client, run_id, other_driver)
    told = (
        f"runs already, in MLflow run {run_id}: the driver with process id {other_driver.own.pid}"
    )
    with pytest.raises(LaunchError, match=told):
        found(store, "held")


def test_a_driver_elsewhere_that_is_not_heard_of_has_lost_the_run(
    store: str,
    client: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_id = found(store, "silent").open().run.info.run_id
    now = [time.time()]

    def passed(seconds: float) -> None:
        now[0] += 10 * seconds

    # Of these modules alone: other threads of the process sleep by the true clock.
    clock = SimpleNamespace(
        time=lambda: now[0],
        monotonic=lambda: now[0],
        sleep=passed,
        strftime=time.strftime,
        gmtime=time.gmtime,
    )
    monkeypatch.setattr(lease, "time", clock)
    monkeypatch.setattr(named, "time", clock)
    elsewhere = Lease()
    elsewhere.own = dataclasses.replace(elsewhere.own, hostname="far", boot_id="b", pid=12)
    take(client, run_id, elsewhere)
    assert found(store, "silent").run_id == run_id
    said = capsys.readouterr().out
    assert said.count("'silent' is held: the driver with process id 12 on host far") == 1

    def renewed(seconds: float) -> None:
        take(client, run_id, elsewhere, at=2e9)

    take(client, run_id, elsewhere)
    clock.sleep = renewed
    with pytest.raises(LaunchError, match="runs already"):
        found(store, "silent")


def test_of_two_that_began_at_once_the_first_goes_on(
    store: str, client: Any, other_driver: Lease
) -> None:
    late = found(store, "race")
    first = found(store, "race").open().run.info.run_id
    take(client, first, other_driver)
    with pytest.raises(LaunchError, match=f"runs already, in MLflow run {first}"):
        late.open()
    (left,) = client.search_runs(["0"], f"tags.`{named.TRAINING_TAG}` = 'race'")
    assert left.info.run_id == first


def test_work_is_known_by_the_function_within_and_its_source() -> None:
    plain = Work.of(found)
    assert plain.function == f"{found.__module__}.found"
    assert plain.code is not None
    assert Work.of(functools.partial(functools.partial(found), "a")) == plain
    assert Work.of(take).code != plain.code
    assert Work.of(os.getpid) == Work(function="posix.getpid", code=None)
    assert Work.of(Lease(1.0)).function.endswith("lease.Lease")
