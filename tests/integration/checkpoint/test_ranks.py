"""Checkpoints of several ranks, on both backends, and on a real S3-compatible server."""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_functions as functions
import pytest
from dcp_functions import train_by_dcp

from every_backend import EVERY_BACKEND
from sparkdl_runner import DistributedRunner
from sparkdl_runner.checkpoint import Checkpoint, CheckpointManager

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]
# What ranks tell one another goes over either; what they make of it is the same.
STEPS = 10


def run(over: str, ranks: int, function: Any, **arguments: Any) -> Any:
    return DistributedRunner(num_proc=-ranks, backend=over).run(function, **arguments)


@pytest.fixture(scope="module", params=EVERY_BACKEND)
def undisturbed(request, tmp_path_factory) -> tuple[str, Any, str]:
    """The backend, what a training that nothing happens to ends with, and its checkpoints."""
    directory = str(tmp_path_factory.mktemp("undisturbed"))
    arguments = {"backend": request.param, "directory": directory, "steps": STEPS}
    return request.param, run(request.param, 2, functions.train, **arguments), directory


def test_sigterm_on_one_rank_ends_all_at_one_step_and_they_go_on(undisturbed, tmp_path):
    backend, expected, _ = undisturbed
    arguments = {"backend": backend, "directory": str(tmp_path), "steps": STEPS}
    ended = run(backend, 2, functions.train, **arguments, stop_signal_at=6)
    (step,) = {rank["step"] for rank in ended}
    assert 6 <= step <= 8
    for rank in ended:
        found_step, found_rank, message = rank["preempted"]
        assert (found_step, found_rank) == (step, 1)
        assert message.startswith("Rank 1 on host ")
        assert message.endswith(f"all ranks saved step {step} and ended.")
    again = run(backend, 2, functions.train, **arguments)
    for rank, at_once in zip(again, expected, strict=True):
        assert rank["restored"] == step
        assert rank["extra"] == {"rank": 0}
        assert rank["digest"] == at_once["digest"], "the weights are the same to the bit"
        assert rank["draw"] == at_once["draw"], "each rank's own generator went on"
        assert not rank["warnings"]


def test_a_world_of_another_size_goes_on(tmp_path):
    backend = "torch"
    arguments = {"backend": backend, "directory": str(tmp_path)}
    small = run(backend, 2, functions.train, **arguments, steps=4)
    assert [rank["dues"] for rank in small] == [[4], [4]]
    larger = run(backend, 3, functions.train, **arguments, steps=4)
    assert [rank["restored"] for rank in larger] == [4] * 3
    assert {rank["digest"] for rank in larger} == {small[0]["digest"]}
    assert len({rank["draw"] for rank in larger}) == 3
    alone = run(backend, 1, functions.train, **arguments, steps=8)
    assert alone[0]["restored"] == 4


@pytest.mark.parametrize("undisturbed", ["torch"], indirect=True)
def test_damage_that_one_rank_sees_makes_all_take_the_one_before(undisturbed, tmp_path):
    backend, _, directory = undisturbed
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "step-8/attempt-0/rng-1.safetensors").write_bytes(b"?")
    again = run(backend, 2, functions.train, backend=backend, directory=str(tmp_path), steps=4)
    assert [rank["restored"] for rank in again] == [4, 4]
    for rank in again:
        assert any("rng-1.safetensors has 1 bytes" in message for message in rank["warnings"])


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, Any]:
    """What the ranks of one run report of their checkpoints, and the folder of these."""
    import torch

    folder = tmp_path_factory.mktemp("told")
    with CheckpointManager(folder / "mismatch") as checkpoints:
        checkpoints.save(1, torch.nn.Linear(2, 1))
    more: dict[str, dict[str, Any]] = {
        "save_where_only_rank_0_sees": {},
        "mismatch_on_rank_1": {},
        "by_the_clock": {"seconds": 0.1},
        "save_without_rank_1": {"seconds": 2.0},
    }
    places = dict(zip(more, ("not-shared", "mismatch", "clock", "without"), strict=True))
    calls = {
        name: {"backend": "torch", "directory": str(folder / places[name]), **arguments}
        for name, arguments in more.items()
    }
    return {**run("torch", 2, functions.in_turn, calls=calls), "folder": folder}


def test_a_directory_that_is_not_shared_is_said_at_once(told):
    for message in told["save_where_only_rank_0_sees"]:
        assert "not seen by rank 1 (host " in message
        assert "storage that all hosts share" in message


def test_a_rank_that_does_not_save_is_named(told):
    message, _ = told["save_without_rank_1"]
    assert "saw nothing of rank 1 (host " in message
    assert "step 1 is still good" in message
    assert (told["folder"] / "without" / "step-1").exists()
    assert not (told["folder"] / "without" / "step-2").exists()


def test_a_mismatch_on_one_rank_changes_nothing_on_any(told):
    (first, same), (second, same_too) = told["mismatch_on_rank_1"]
    assert same
    assert same_too
    assert "Rank 0 cannot restore" in first
    assert "another rank" in first
    assert "2 of another shape" in second


def test_rank_0s_clock_counts_on_all(told):
    (first, seconds), (second, _) = told["by_the_clock"]
    assert first == second
    assert 2 <= len(first) <= seconds / 0.1


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> tuple[Path, Any]:
    """Checkpoints of steps 2 and 4 of a sharded model, and what rank 0 says of its training."""
    folder = tmp_path_factory.mktemp("sharded")
    told, _ = run("torch", 2, functions.train_sharded, directory=str(folder), steps=4)
    return folder, told


def test_a_sharded_model_is_saved_by_two_and_restored_by_any(sharded):
    folder, saved = sharded
    assert saved["problems"] == [[], []]
    assert (folder / "step-4/attempt-0/sharded/metadata.json").exists()
    assert not list(folder.rglob(".metadata"))
    arguments = {"directory": str(folder), "steps": 4, "read_only": True}
    for ranks in (1, 3):
        for rank in run("torch", ranks, functions.train_sharded, **arguments):
            assert rank["restored"] == 4
            assert rank["extra"] == {"sharded": True}
            assert rank["weights"] == saved["weights"]
            assert rank["moments"] == pytest.approx(saved["moments"], abs=1e-6)


def test_a_sharded_model_goes_on_to_the_same_bits(sharded, tmp_path):
    folder, expected = sharded
    shutil.copytree(folder / "step-2", tmp_path / "step-2")
    found, _ = run("torch", 2, functions.train_sharded, directory=str(tmp_path), steps=4)
    assert found["restored"] == 2
    assert found["weights"] == expected["weights"]


def test_damage_of_any_shard_and_another_model_are_seen(sharded, tmp_path):
    damaged = {}
    for number, file in enumerate(
        ("sharded/rank-1.safetensors", "sharded/metadata.json", "rank-1.json")
    ):
        directory = tmp_path / str(number)
        shutil.copytree(sharded[0], directory)
        path = directory / "step-4/attempt-0" / file
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        assert CheckpointManager(directory).verify("step-4/attempt-0") != [], file
        damaged[str(directory)] = file
    calls = {
        "restored_steps": {"directories": list(damaged)},
        "train_sharded": {"directory": str(sharded[0]), "steps": 2, "fail": "shape"},
    }
    found = run("torch", 2, functions.in_turn, calls=calls)
    for rank in found["restored_steps"]:
        assert rank == [2, 2, 2], "the checkpoint before the damaged one"
    for message in found["train_sharded"]:
        assert "3 of another shape: 0.bias ([5] in the checkpoint, [6] here)" in message


ACCESS_KEY, SECRET_KEY = "AKIA0TESTS0ONLY", "not+a+real+secret/but/looked/for"


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """What reaches an S3-compatible server in this process, with a bucket."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    options = {
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "endpoint_override": f"{host}:{port}",
        "scheme": "http",
        "region": "us-east-1",
    }
    fs.S3FileSystem(**options, allow_bucket_creation=True).create_dir("checkpoints")
    yield options
    running.stop()


def test_checkpoints_on_s3(s3, caplog, capfd):
    import torch
    from pyarrow import fs

    url = "s3a://checkpoints/a/b"
    model = torch.nn.Linear(300, 300)
    with (
        caplog.at_level(logging.DEBUG),
        CheckpointManager(url, keep_last=2, storage_options=s3) as checkpoints,
    ):
        for step in range(1, 5):
            checkpoints.save(step, model, extra={"step": step})
        checkpoints.wait()
        assert [str(name) for name in checkpoints.list()] == [
            "step-3/attempt-0",
            "step-4/attempt-0",
        ]
        assert [checkpoints.verify(name) for name in checkpoints.list()] == [[], []]
    filesystem = fs.S3FileSystem(**s3)
    left = filesystem.get_file_info(fs.FileSelector("checkpoints/a/b", recursive=True))
    # Nothing is left of what was removed, neither files nor names of directories.
    assert not [info.path for info in left if "step-1" in info.path or "step-2" in info.path]
    with filesystem.open_output_stream(
        "checkpoints/a/b/step-4/attempt-0/model.safetensors"
    ) as stream:
        stream.write(b"cut")
    with CheckpointManager(url, storage_options=s3) as checkpoints:
        with pytest.warns(UserWarning, match=r"model\.safetensors has 3 bytes"):
            restored = checkpoints.restore()
        with pytest.warns(UserWarning, match=r"model\.safetensors has 3 bytes") as warned:
            loaded = Checkpoint.load(url, storage_options=s3)
        assert restored.step == loaded.step == 3
        assert restored.path == loaded.path == f"{url}/step-3/attempt-0"
    assert torch.equal(loaded.model["weight"], model.weight)
    said = caplog.text + "".join(capfd.readouterr()) + "".join(str(one.message) for one in warned)
    assert SECRET_KEY not in said


def test_fsdp2_saved_by_dcp_on_s3_is_restored_by_another_number_of_ranks(s3):
    arguments = {"url": "s3a://checkpoints/dcp", "options": s3, "steps": 2}
    step, saved = run("torch", 2, train_by_dcp, **arguments)
    assert step is None
    assert any(name.startswith("state.0.weight.exp_avg") for name in saved)
    step, restored = run("torch", 3, train_by_dcp, **arguments)
    assert step == 2
    assert restored == saved, "the same numbers, bit for bit"
    checkpoint = Checkpoint.load(arguments["url"], storage_options=s3)
    assert checkpoint.world_size == 2
    assert checkpoint.model["2.bias"].tolist() == saved["2.bias"]


def test_s3_that_cannot_be_reached_is_said(s3, monkeypatch):
    from pyarrow import fs

    from sparkdl_runner.checkpoint import CheckpointError, peers

    soon = functools.partial(peers.patiently, retry_seconds=0.1)
    monkeypatch.setattr(peers, "patiently", soon)
    once = fs.AwsDefaultS3RetryStrategy(max_attempts=0)
    options = {**s3, "endpoint_override": "127.0.0.1:1", "retry_strategy": once}
    with (
        CheckpointManager("s3a://checkpoints/x", storage_options=options) as checkpoints,
        pytest.raises(CheckpointError, match="no checkpoint can be kept in s3a://checkpoints/x"),
    ):
        checkpoints.save(1)


@pytest.mark.parametrize(("backend", "hosts"), [("torch", 2), ("horovod", 1)])
def test_a_host_reads_the_model_once_for_all_of_its_ranks(backend, hosts, tmp_path):
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, model, torch.optim.Adam(model.parameters()))
    size_bytes = (tmp_path / "step-1/attempt-0/model.safetensors").stat().st_size
    arguments = {"backend": backend, "directory": str(tmp_path), "hosts": hosts}
    ranks = run(backend, 4 // (3 - hosts), functions.bytes_read_on_hosts, **arguments)
    assert sum(found for found, _ in ranks) == hosts * size_bytes
    assert {digest for _, digest in ranks} == {functions.digest(model)}
