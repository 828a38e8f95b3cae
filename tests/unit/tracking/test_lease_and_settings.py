"""Who may hold a run, and what may be asked for."""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
import sys
import types
from typing import Any

import pytest

from one_module import replace_in
from sparkdl_runner import LaunchError, RunConfig
from sparkdl_runner.launch.driver.calls.ingredients import arguments
from sparkdl_runner.rank.process_identity import started_ticks
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.rank_run import RunTicket
from sparkdl_runner.tracking.run.opening import lease as lease_module
from sparkdl_runner.tracking.run.opening.lease import ALIVE_TAG, HOLDER_TAG, Lease
from sparkdl_runner.tracking.run.opening.store import check_store, is_set_up
from sparkdl_runner.tracking.run.parameters_and_tags import GIT_COMMIT_TAG, parameters
from sparkdl_runner.tracking.run.parameters_and_tags import tags as tags_of_run
from sparkdl_runner.tracking.run.server import is_remote


def tags_of(lease: Lease, at: float) -> dict[str, str]:
    return {key: value for _, key, value in lease.entries(at)}


def held_by(at: float, **fields: Any) -> dict[str, str]:
    """The tags of another driver, which differs from this one in these fields."""
    own = json.loads(tags_of(Lease(), at)[HOLDER_TAG])
    return {HOLDER_TAG: json.dumps({**own, **fields}), ALIVE_TAG: f"{at:.0f}"}


def test_a_run_is_held_as_long_as_its_driver_is_heard_of() -> None:
    lease = Lease()
    elsewhere = held_by(1000, hostname="far-away", pid=12, since=1000000000)
    told = str(lease.held_by_another(elsewhere, now=1010))
    assert told == (
        "the driver with process id 12 on host far-away runs it since 2001-09-09 01:46:40 UTC, "
        "heard of 10 s ago"
    )
    # This host's clock is 15 minutes behind the other's.
    assert "heard of 0 s ago" in str(lease.held_by_another(elsewhere, now=100))
    assert lease.held_by_another(tags_of(lease, 1000), now=1000) is None
    for tags in ({}, {HOLDER_TAG: elsewhere[HOLDER_TAG]}, {**elsewhere, ALIVE_TAG: "soon"}):
        assert lease.held_by_another(tags, now=1010) is None


def test_a_lease_is_over_when_its_sign_has_not_changed_before_our_eyes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other driver's clock, which its sign shows, may go wrong by minutes."""
    at = [5.0]
    replace_in(monkeypatch, lease_module, "time", monotonic=lambda: at[0])
    lease = Lease()
    fields = {"hostname": "far-away", "lease": "b"}
    for now in (880, 1000, 1500):  # Its clock is 120 s ahead, right, and 500 s behind.
        at[0] += 100
        # Three signs of one that lives, 20 s apart; then there is none any more.
        for sign in (1000, 1020, 1040):
            at[0] += 20
            assert lease.held_by_another(held_by(sign + now, **fields), now=now)
        last = held_by(1040 + now, **fields)
        at[0] += 90
        assert lease.held_by_another(last, now=now)
        at[0] += 1
        assert lease.held_by_another(last, now=now) is None
    longer = held_by(1000, **fields, seconds=200.0)
    assert lease.held_by_another(longer, now=1000)
    at[0] += 199
    assert lease.held_by_another(longer, now=1000)


def test_one_that_is_late_by_our_clock_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    at, told = [5.0], []

    def passed(seconds: float) -> None:
        at[0] += seconds

    monkeypatch.setattr(
        lease_module,
        "time",
        types.SimpleNamespace(time=lambda: 2000.0, monotonic=lambda: at[0], sleep=passed),
    )
    lease = Lease()
    dead = held_by(1000, hostname="far-away", lease="b")
    assert lease.wait_for_sign(dead, lambda: dead, told.append) is None
    assert 90 < at[0] - 5 < 95
    assert len(told) == 1
    lives = iter(held_by(sign, hostname="far-away", lease="c") for sign in range(1001, 1010))
    at[0] = 5.0
    assert lease.wait_for_sign(next(lives), lambda: next(lives), told.append)
    assert at[0] - 5 < 20
    fresh = held_by(1999, hostname="far-away", lease="d")
    assert lease.wait_for_sign(fresh, lambda: pytest.fail("looked again"), told.append)


@pytest.mark.parametrize("holder", ["far-away 12 34 abc 1000000000", "{", "[" * 100_000, "{}"])
def test_a_driver_of_another_version_is_one_too(holder: str) -> None:
    tags = {HOLDER_TAG: holder, ALIVE_TAG: "1000"}
    assert Lease().held_by_another(tags, now=1010) is not None
    assert Lease().held_by_another(tags, now=1091) is not None
    assert Lease().held_by_another(tags, now=100_000) is None, "long ago"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0, -1, 2**62])
def test_a_tag_of_others_makes_nobody_wait_for_ever(seconds: float) -> None:
    holder = Lease().held_by_another(held_by(1000, hostname="far-away", seconds=seconds), now=1010)
    assert holder is not None
    assert 10 <= holder.seconds <= 24 * 3600


@pytest.mark.parametrize("fields", [{"since": 2**62}, {"since": -1}, {"lease": "b", "pid": -1}])
def test_what_a_tag_of_others_says_can_be_shown(fields: dict[str, int]) -> None:
    fields = {"hostname": "far-away" * 1000, **fields}
    assert len(str(Lease().held_by_another(held_by(1000, **fields), now=1010))) < 300


def test_a_lease_of_more_than_a_day_is_one_of_a_day() -> None:
    assert Lease(1e9).own.seconds == 24 * 3600


def test_a_driver_of_this_host_that_is_dead_holds_nothing() -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tags = held_by(1000, pid=other.pid, started_ticks=started_ticks(other.pid))
    assert Lease().held_by_another(tags, now=1001) is not None
    assert other.stdin is not None
    other.stdin.close()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert Lease().held_by_another(tags, now=1001) is None, "it ended, and nobody has asked how"
    other.wait()
    assert Lease().held_by_another(tags, now=1001) is None


@pytest.mark.parametrize("other", ["hostname", "boot_id", "pid_namespace"])
def test_what_is_not_seen_from_here_is_not_known_to_be_dead(other: str) -> None:
    """Two containers may have one hostname, and process ids of their own."""
    nobody = held_by(1000, pid=1 << 22, started_ticks=1)
    assert Lease().held_by_another(nobody, now=1001) is None
    assert Lease().held_by_another(held_by(1000, **{other: "x"}), now=1001) is not None


def test_pages_do_not_show_who_drives() -> None:
    assert all(name.startswith("mlflow.") for _, name, _ in Lease().entries())


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"other_ranks": "shout"}, ValueError, "'ignore' and 'error'"),
        ({"experiment": ""}, TypeError, "experiment is ''"),
        ({"run_id": 7}, TypeError, "run_id is 7"),
        ({"tags": {"a": 1}}, TypeError, "tags is"),
        ({"report": "yes"}, TypeError, "report is 'yes'"),
        ({"opening_timeout_seconds": 0.5}, ValueError, "1 or more"),
        ({"delivery_timeout_seconds": -1}, ValueError, "0 or more"),
        ({"lease_seconds": 9}, ValueError, "10 or more"),
        ({"delivery_timeout_seconds": "1"}, TypeError, "must be a number"),
    ],
)
def test_bad_settings_are_refused(
    settings: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        Tracking(**settings)


def test_a_limit_itself_may_be_asked_for() -> None:
    assert Tracking(opening_timeout_seconds=1).opening_timeout_seconds == 1
    assert Tracking(delivery_timeout_seconds=0).delivery_timeout_seconds == 0


def test_settings_that_nobody_chose_are_no_tags() -> None:
    def settings(config: RunConfig) -> set[str]:
        found = [
            {f"{name}={value}" for _, name, value in tags_of_run({}, one, None)}
            for one in (config.chosen(), {})
        ]
        return found[0] - found[1]

    assert settings(RunConfig()) == set()
    chosen = RunConfig(max_restarts=2, hang_timeout_seconds=None, tracking=Tracking(run_name="x"))
    assert settings(chosen) == {
        "sparkdl_runner.hang_timeout_seconds=None",
        "sparkdl_runner.max_restarts=2",
    }


def test_tags_of_the_package_begin_alike_and_all_versions_are_one_tag() -> None:
    found = {name: text for _, name, text in tags_of_run({"team": "a"}, {}, "app-1")}
    theirs = [name for name in found if not name.startswith(("sparkdl_runner.", "mlflow."))]
    assert theirs == ["team"]
    assert found["sparkdl_runner.application_id"] == "app-1"
    versions = found["mlflow.sparkdl_runner.versions"]
    assert versions.startswith("python 3.")
    assert all(f", {name} " in versions for name in ("torch", "mlflow"))


def test_a_commit_that_is_given_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    where = "sparkdl_runner.tracking.run.parameters_and_tags.git_commit"
    monkeypatch.setattr(where, lambda: pytest.fail("git was asked for another commit"))
    assert ["tag", GIT_COMMIT_TAG, "abc"] in tags_of_run({GIT_COMMIT_TAG: "abc"}, {}, None)


def test_numbers_and_short_texts_among_the_arguments_are_parameters() -> None:
    def train(data, lr, *more, epochs=2, optimizer=None, **options):
        pass

    nested = {"name": "adam", "betas": (1, 2), "deeper": {"eps": 1e-3, "x?": 1, 5: True}}
    called = arguments(train, object(), 0.1, 7, optimizer=nested, text="a" * 501, on=True)
    assert {name: value for _, name, value in parameters(called)} == {
        "lr": "0.1",
        "epochs": "2",
        "optimizer.name": "adam",
        "optimizer.deeper.eps": "0.001",
        "optimizer.deeper.5": "True",
        "on": "True",
    }


def test_the_run_config_takes_tracking_or_a_wish() -> None:
    for wish in (None, True, False, Tracking(run_name="x")):
        assert RunConfig(tracking=wish).tracking == wish
    with pytest.raises(TypeError, match=r"tracking is 'mlflow'; it must be a sparkdl_runner"):
        RunConfig(tracking="mlflow")  # type: ignore[arg-type]


def test_which_stores_other_hosts_reach() -> None:
    for uri in (
        "http://h:5000",
        "https://h",
        "databricks",
        "databricks://profile",
        "postgresql://h",
    ):
        assert is_remote(uri)
    for uri in ("sqlite:////x.db", "file:///x", "/x", "./mlruns"):
        assert not is_remote(uri)


def installed_mlflow(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Makes this process one that has called ``mlflow.set_tracking_uri``."""
    fake = types.ModuleType("mlflow")
    fake.__spec__ = importlib.machinery.ModuleSpec("mlflow", None)
    fake.__version__ = version  # type: ignore[attr-defined]
    fake.is_tracking_uri_set = lambda: True  # type: ignore[attr-defined]
    fake.active_run = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "DATABRICKS_"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("version", ["2.13.0", "2.21.3", "3.0.1", "3.17.2"])
def test_mlflow_of_databricks_runtimes_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    installed_mlflow(monkeypatch, version)
    assert is_set_up()


def test_an_old_mlflow_is_a_warning_where_nobody_asked_and_else_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed_mlflow(monkeypatch, "2.12.2")
    assert not is_set_up()
    assert "MLflow 2.12.2 is installed on the driver; 2.13 or later" in capsys.readouterr().err
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "14.3")
    assert not is_set_up()
    with pytest.raises(LaunchError, match=r"2\.13 or later is needed: run pip install 'mlflow>=2"):
        check_store(Tracking())


def ticket(credentials: dict[str, str]) -> RunTicket:
    return RunTicket(
        run_id="r",
        run_name="n",
        experiment_id="1",
        artifact_uri="mlflow-artifacts:/1/r",
        tracking_uri="http://u:pw-pw-pw@h",
        given_uri="http://u:pw-pw-pw@h",
        credentials=credentials,
        is_named=False,
        source={},
        store_file=None,
        other_ranks="ignore",
        system_metrics=True,
        trace_steps=False,
        horovod_timeline=False,
    )


def test_credentials_go_to_every_rank_and_show_nowhere() -> None:
    made = ticket(credentials={"MLFLOW_TRACKING_TOKEN": "tell-nobody"})
    assert "tell-nobody" not in repr(made)
    assert "pw-pw-pw" not in repr(made)
    for rank in (0, 1):
        run, environment = made.for_rank(rank, "h")
        assert environment["MLFLOW_TRACKING_TOKEN"] == "tell-nobody"
        assert environment["MLFLOW_RUN_ID"] == "r"
        assert run.tracking_uri == environment["MLFLOW_TRACKING_URI"]
        assert run.artifacts.stat().st_mode & 0o077 == 0
        run.artifacts.rmdir()
        run.artifacts.parent.rmdir()


def test_a_hosts_own_way_into_its_cloud_comes_first_and_the_drivers_into_mlflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"MLFLOW_TRACKING_TOKEN": "driver", "AWS_PROFILE": "driver", "AWS_REGION": "driver"}
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "host")
    monkeypatch.setenv("AWS_PROFILE", "host")
    monkeypatch.delenv("AWS_REGION", raising=False)
    run, environment = ticket(credentials=given).for_rank(0, "h")
    run.artifacts.rmdir()
    run.artifacts.parent.rmdir()
    assert environment["MLFLOW_TRACKING_TOKEN"] == "driver"
    assert environment["AWS_REGION"] == "driver"
    assert "AWS_PROFILE" not in environment
    assert run.tracking_uri == environment["MLFLOW_TRACKING_URI"] == "http://u:pw-pw-pw@h"


def test_credentials_of_two_places_are_never_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of the host with a token of the driver would be nobody."""
    given = {
        "MLFLOW_TRACKING_TOKEN": "driver",
        "AWS_ACCESS_KEY_ID": "driver",
        "AWS_SESSION_TOKEN": "driver",
        "AWS_REGION": "driver",
        "AZURE_CLIENT_ID": "driver",
        "AZURE_CLIENT_SECRET": "driver",
    }
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    host = ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_S3_ENDPOINT_URL"]
    for name in [*host, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "DATABRICKS_TOKEN"]:
        monkeypatch.setenv(name, "host")
    made = ticket(credentials=given)
    run, environment = made.for_rank(0, "h")
    run.artifacts.rmdir()
    run.artifacts.parent.rmdir()
    assert sorted(made.to_forget()) == ["MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_USERNAME"]
    assert {name for name, value in environment.items() if value == "driver"} == {
        "MLFLOW_TRACKING_TOKEN",
        "AWS_REGION",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
    }


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"name": "shop 2026/11"}, ValueError, "tag and a folder.* such as 'shop-2026-11'"),
        ({"name": "ü"}, ValueError, "it must be 1 to 100 letters"),
        ({"name": ""}, ValueError, "it must be 1 to 100"),
        ({"name": "../x"}, ValueError, "begin with a letter or digit"),
        ({"name": "a" * 101}, ValueError, "1 to 100"),
        ({"name": 7}, TypeError, "name is 7"),
        ({"name": "shop", "tracking": False}, ValueError, "leave one of them out"),
        ({"name": "shop", "tracking": Tracking(run_id="1")}, ValueError, "leave one of them out"),
        ({"rerun_finished": 1}, TypeError, "rerun_finished is 1"),
    ],
)
def test_a_name_that_is_none_is_refused(
    settings: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        RunConfig(**settings)
