"""What MLflow's own calls do on rank 0 and on the others: MLflow itself, with stores in files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stores")
    script = Path(__file__).with_name("plain_calls.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for rank in (0, 1):
        assert isinstance(found[f"rank {rank}"], dict), done.stderr
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_reads(told: dict[str, Any], rank: int) -> None:
    assert told[f"rank {rank}"]["reads"] == {
        "param": "3",
        "runs": 2,
        "registered": "known",
        "own": {"given": "1"},
        "active": True,
        "artifacts": ["note.txt"],
        "experiment": "training",
    }


def test_rank_0_alone_writes_the_run_and_any_rank_another(told: dict[str, Any]) -> None:
    assert told["entries 1"] == []
    entries = told["entries 0"]
    assert ["tag", "mlflow.runName", "named in the function"] in entries
    assert ["tag", "mlflow.note.content", "by hand"] in entries
    assert ["tag", "said_by", "rank 0"] in entries
    assert ["param", "rate", "0.1"] in entries
    assert ["param", "later", "0"] in entries
    metrics = {entry[1]: entry[2] for entry in entries if entry[0] == "metric"}
    assert [metrics[name] for name in ("plain", "by_client", "by_uri")] == [0.0] * 3
    assert not {"reopened", "chosen", "elsewhere"} & metrics.keys()
    assert told["text"] == "by rank 0"
    assert told["ours"]["status"] == "RUNNING"
    assert not {"plain", "by_uri"} & told["ours"].keys(), "by way of the driver alone"
    assert {"from_0", "from_1", "batch_from_0", "batch_from_1"} <= told["other"].keys()


def test_only_rank_0_makes_experiments(told: dict[str, Any]) -> None:
    assert told["rank 1"]["experiment"] == told["experiment"], "the training's, so far"
    assert told["experiments"] == ["Default", "chosen", "training"]


def test_another_store_is_left_alone(told: dict[str, Any]) -> None:
    assert told["elsewhere"] == ["0", "1", "None"]


def test_only_rank_0_makes_models_of_the_run(told: dict[str, Any]) -> None:
    assert (told["rank 0"]["version"], told["rank 1"]["version"]) == ("1", "0")
    assert [str(one) for one in told["versions"]] == ["1"]


def test_a_model_without_a_step_is_of_the_newest_one(told: dict[str, Any]) -> None:
    # Before MLflow 3 a run lists no models, and a model has no step of its own.
    lists_models = int(told["mlflow"].partition(".")[0]) >= 3
    assert told["steps"] == ([5] if lists_models else None)


def test_rank_0_may_choose_another_run(told: dict[str, Any]) -> None:
    found = dict(told["rank 0"]["chooses"])
    assert found.pop("name") == "chosen"
    assert found == dict.fromkeys(found, True)
    assert told["other"]["reopened"] == 1.0
    assert told["runs"] == 3, "ours, the other, and rank 0's child"


def test_ranks_that_must_not_write_still_read(told: dict[str, Any]) -> None:
    assert "Rank 1 on host h called MLflow to write to the training's run" in told["refused"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_on_another_host_takes_what_goes_by_way_of_the_driver(
    told: dict[str, Any], rank: int
) -> None:
    (written, *read), entries = told[f"apart {rank}"]
    assert all("MLflow's store is a file on the driver's" in one for one in read)
    assert bool(written) == (rank == 0), "a rank that must not write need not reach it"
    assert entries == ([["param", "apart", "yes"]] if rank == 0 else [])
