"""A standalone cluster of two hosts with one name: what crosses a network, and if that breaks."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import failure_rows
import psutil
import pytest
import rank_functions
from hosts import Cluster, Hosts
from spark_sessions import session_on

from docs_blocks import ROOT, blocks_of
from every_backend import EVERY_BACKEND
from held_copies import held, until
from namespaces import why_not
from processes import wait_until_gone, workers
from sparkdl_runner import (
    DistributedRunner,
    LaunchError,
    RunConfig,
    WorkerDiedError,
    WorkerHungError,
    current_world,
)
from sparkdl_runner.launch.driver.spark.executors import list_executors
from sparkdl_runner.rank import restart_memory
from sparkdl_runner.tracking import Tracking

REASON = why_not()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(REASON is not None, reason=f"needs several hosts: {REASON}"),
]
LIGHT = pytest.mark.usefixtures("light_spark_ranks")
BACKENDS = pytest.mark.parametrize("backend", EVERY_BACKEND)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    yield hosts
    hosts.close()


@pytest.fixture(scope="module")
def cluster(hosts, tmp_path_factory) -> Iterator[Cluster]:
    cluster = Cluster(hosts, tmp_path_factory.mktemp("cluster"), gpus=("6", "2"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def spark(sessions, hosts, cluster):
    session = session_on(
        sessions,
        cluster.url,
        **{
            "spark.driver.host": hosts.driver,
            "spark.driver.bindAddress": hosts.driver,
            "spark.executor.memory": "600m",
            "spark.executor.cores": "2",
            "spark.executor.resource.gpu.amount": "1",
        },
    )
    yield session
    sessions.pop(cluster.url).stop()


def look_around(backend: str) -> list:
    """Each rank's place, its devices, and who listens on its host."""
    from sparkdl_runner import current_world

    rank_functions.init(backend)
    mine = {
        **current_world().to_json(),
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        "listening": [
            connection.laddr.ip
            for connection in psutil.net_connections("tcp")
            if connection.status == "LISTEN" and connection.pid in (os.getpid(), os.getppid())
        ],
    }
    return rank_functions.gather(backend, mine)


@pytest.mark.parametrize("backend", [pytest.param("horovod", marks=pytest.mark.one_lane), "torch"])
def test_hosts_that_share_a_name_are_two_hosts_reached_by_the_routed_interface_alone(
    spark, hosts, backend
):
    found = DistributedRunner(num_proc=2, backend=backend).run(look_around, backend=backend)
    assert len({one["host"] for one in found}) == 1
    assert {(one["address"], one["interface"]) for one in found} == set(
        zip(hosts.addresses, hosts.interfaces, strict=True)
    )
    assert [(one["local_size"], one["cross_size"]) for one in found] == [(1, 2), (1, 2)]
    # By stage-level scheduling: no setting gives a task a GPU.
    assert {one["gpus"] for one in found} == {"6", "2"}
    # Nothing of a run listens on all interfaces; torch's store itself on the loopback's alone.
    listening = {address for one in found for address in one["listening"]}
    stores = {"127.0.0.1"} if backend == "torch" else set()
    assert stores < listening <= stores | set(hosts.addresses)


def look_at_ports() -> list:
    rank_functions.init("torch")
    mine = [
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.Process(os.getppid()).net_connections("tcp")
        if connection.status == "LISTEN"
    ]
    driver = [
        tuple(connection.raddr)
        for connection in psutil.Process(os.getppid()).net_connections("tcp")
        if connection.status == "ESTABLISHED" and connection.raddr.ip != connection.laddr.ip
    ]
    return rank_functions.gather("torch", {"listening": mine, "connected": driver})


@pytest.mark.one_lane
def test_ports_and_a_network_are_as_asked_and_a_driver_called_localhost_is_heard(
    spark, hosts, capsys
):
    """Spark itself goes on as it was: it reads these settings when it starts."""
    # Executors that have yet to start would look for the driver at what is set below.
    DistributedRunner(num_proc=2, backend="horovod").run(print)
    settings = spark.sparkContext._conf
    before = {name: settings.get(f"spark.driver.{name}") for name in ("host", "bindAddress")}
    settings.set("spark.driver.host", "localhost").set("spark.driver.bindAddress", "0.0.0.0")
    try:
        ports = (43000, 43009)
        subnet = hosts.driver.rpartition(".")[0] + ".0/24"
        for config in (RunConfig(), RunConfig(port_range=ports, network_interface=subnet)):
            found = DistributedRunner(num_proc=2, backend="torch", run_config=config).run(
                look_at_ports
            )
            assert "could not reach the driver" not in capsys.readouterr().err
            listening = [one for rank in found for one in rank["listening"]]
            assert {ip for ip, _ in listening} <= {"127.0.0.1", *hosts.addresses}
            to_driver = {
                port for rank in found for ip, port in rank["connected"] if ip == hosts.driver
            }
            assert to_driver
        assert len(listening) >= 2
        assert {port for _, port in listening} <= set(range(*ports))
        assert to_driver & set(range(*ports))
    finally:
        for name, value in before.items():
            settings.set(f"spark.driver.{name}", value)


def log_on_a_host(all_is_there: Path) -> str:
    import mlflow

    from sparkdl_runner import current_world
    from sparkdl_runner.tracking import log_metrics

    rank = current_world().rank
    for step in range(1, 31):
        log_metrics(step, loss=1 / step, samples=2)
    while not all_is_there.exists():  # Hosts are looked at after two seconds first.
        time.sleep(0.1)
    mlflow.log_param("from_a_host", "yes")
    mlflow.end_run()
    told = ""
    try:
        mlflow.log_text("text", "note.txt")
    except mlflow.MlflowException as error:
        told = str(error)
    print(f"rank {rank} has logged")
    return told


def cpu_metrics(run: Any) -> set[str]:
    return {name for name in run.data.metrics if name.endswith("cpu_utilization_percentage")}


@LIGHT
@pytest.mark.one_lane
def test_one_run_holds_what_both_hosts_tell(spark, tmp_path, monkeypatch, new_store):
    """The store is a file of the driver's, which no executor is to look for on its own disk."""
    import mlflow

    monkeypatch.chdir(tmp_path)
    uri = new_store(tmp_path)
    tracking = Tracking(tracking_uri=uri, experiment="hosts")
    runner = DistributedRunner(
        num_proc=2, backend="horovod", run_config=RunConfig(tracking=tracking)
    )
    client = mlflow.MlflowClient(tracking_uri=uri)
    all_is_there, is_over = tmp_path / "all is there", threading.Event()

    def look() -> None:
        while not is_over.wait(0.5):
            if runner.mlflow_run_id and len(cpu_metrics(client.get_run(runner.mlflow_run_id))) == 2:
                all_is_there.touch()
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        told = runner.run(log_on_a_host, all_is_there)
    finally:
        is_over.set()
        looking.join()
    assert "MLflow's store is a file on the driver's" in told
    run = client.get_run(runner.mlflow_run_id)
    assert run.info.status == "FINISHED"
    params = run.data.params
    assert params["world_size"] == "2"
    assert run.data.tags["sparkdl_runner.num_hosts"] == run.data.tags["sparkdl_runner.gpus"] == "2"
    assert params["from_a_host"] == "yes"
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 30
    assert len(cpu_metrics(run)) == 2
    assert all(name.startswith("system/") for name in cpu_metrics(run))
    logs = client.list_artifacts(run.info.run_id, "logs")
    assert [one.path for one in logs] == ["logs/rank_0", "logs/rank_1"]


@pytest.mark.one_lane
@pytest.mark.parametrize(
    ("backend", "train"),
    [("horovod", rank_functions.train_with_horovod), ("torch", rank_functions.train_with_ddp)],
)
def test_unmodified_training_code_ends_with_equal_weights(spark, backend, train):
    weights = DistributedRunner(num_proc=2, backend=backend).run(train)
    assert weights[0] == weights[1]


@pytest.fixture
def two_ranks_a_host(spark):
    """As on hosts without GPUs, where each core is a slot."""
    DistributedRunner(num_proc=2, backend="horovod").run(print)  # Executors start as they are set.
    settings = spark.sparkContext._conf
    settings.set("spark.executor.resource.gpu.amount", "0")
    yield
    settings.set("spark.executor.resource.gpu.amount", "1")


def train_over_hosts(page: dict[str, Any], folder: str) -> dict[str, Any]:
    """The losses of strategies that cross hosts and of plain DDP; and which ranks share what."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    train, data = page["train"], page["data"]
    found: dict[str, Any] = {"ddp": train(page["ddp"], data, f"{folder}/ddp", 20)}
    interleaved = partial(page["pipeline"], page["Schedule1F1B"])
    gpipe = partial(page["pipeline"], page["ScheduleGPipe"])
    found["pipeline"] = train(interleaved, data, f"{folder}/pipeline", 10)
    # Goes on from the checkpoint to which the ranks of both hosts wrote their stages.
    found["pipeline"] |= train(gpipe, data, f"{folder}/pipeline", 20)
    found["2d"] = train(page["two_dimensions"], data, f"{folder}/2d", 20)
    world = current_world()
    shape = world.num_hosts, world.local_size
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, world.address)
    found["shape"] = shape
    for name in ("dp", "tp"):
        found[name] = [hosts[rank] for rank in mesh[name].mesh.tolist()]
    return found


@pytest.mark.one_lane
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.usefixtures("two_ranks_a_host")
def test_a_pipeline_and_a_mesh_over_two_hosts_train_as_ddp(hosts, tmp_path):
    page: dict[str, Any] = {"__name__": "page_of_strategies"}
    blocks = [one for one in blocks_of(ROOT / "docs/strategies.md") if one.kind == "python"]
    exec("".join(one.text for one in blocks[:-1]), page)  # The last one starts ranks.
    found = DistributedRunner(num_proc=4, backend="torch").run(
        train_over_hosts, page, str(tmp_path)
    )
    for name in ("pipeline", "2d"):
        assert found[name] == {
            step: pytest.approx(found["ddp"][step], rel=1e-5) for step in range(1, 21)
        }
    # The last dimension is within a host, the first between hosts.
    assert found["shape"] == (2, 2)
    assert len(set(found["tp"])) == 1
    assert set(found["dp"]) == set(hosts.addresses)


@pytest.mark.one_lane
@pytest.mark.parametrize(
    ("backend", "how"),
    # The other rows are on a cluster of executors.
    [("torch", "raise"), ("horovod", "exit")],
)
def test_a_failed_rank_on_another_host_is_named_as_anywhere(spark, backend, how):
    failure_rows.check(backend, how)


@LIGHT
def test_encryption_that_spark_asks_for_is_not_silently_left_out(spark, monkeypatch):
    settings = spark.sparkContext._conf
    settings.set("spark.network.crypto.enabled", "true")
    try:
        with pytest.raises(LaunchError, match=r"crypto\.enabled is true.*allow_unencrypted=True"):
            DistributedRunner(num_proc=2).run(print)
        config = RunConfig(allow_unencrypted=True)
        DistributedRunner(num_proc=2, backend="horovod", run_config=config).run(print)
    finally:
        settings.set("spark.network.crypto.enabled", "false")


@pytest.mark.one_lane
@BACKENDS
def test_a_host_whose_link_is_cut_in_an_allreduce_is_named_in_time(spark, hosts, backend, tmp_path):
    config = RunConfig(heartbeat_timeout_seconds=10)
    cut_at = []

    def cut_when_it_runs() -> None:
        while not (tmp_path / "mark").exists():
            time.sleep(0.05)
        cut_at.append(time.monotonic())
        hosts.cut(1)

    cutter = threading.Thread(target=cut_when_it_runs, daemon=True)
    cutter.start()
    try:
        with pytest.raises(WorkerDiedError, match="has not been heard of for") as caught:
            DistributedRunner(num_proc=2, backend=backend, run_config=config).run(
                rank_functions.allreduce_and_mark, backend=backend, path=str(tmp_path / "mark")
            )
        # Spark's master misses a silent worker after a minute.
        assert time.monotonic() - cut_at[0] < 60
        place = f"on host {caught.value.host} ({hosts.addresses[1]})"
        assert place in str(caught.value)
        # The host that is cut off ends its own rank: it has not heard the driver for 20 s.
        assert wait_until_gone("sparkdl_runner.launch.worker"), workers()
    finally:
        hosts.mend(1)
    deadline = time.monotonic() + 300
    while True:  # Spark takes a while to have the host back.
        try:
            DistributedRunner(num_proc=2, backend="torch").run(print)
            break
        except (WorkerDiedError, WorkerHungError):
            assert time.monotonic() < deadline


@pytest.mark.one_lane
@BACKENDS
def test_a_network_cut_between_two_hosts_is_named_and_no_rank_is_blamed(
    spark, hosts, backend, tmp_path
):
    mark = tmp_path / "mark"

    def cut_when_it_runs() -> None:
        while not mark.exists():
            time.sleep(0.05)
        hosts.separate(apart=True)

    cutter = threading.Thread(target=cut_when_it_runs, daemon=True)
    cutter.start()
    config = RunConfig(hang_timeout_seconds=10)
    try:
        with pytest.raises(WorkerHungError, match="and none is late") as caught:
            DistributedRunner(num_proc=2, backend=backend, run_config=config).run(
                rank_functions.allreduce_and_mark, backend=backend, path=str(mark)
            )
    finally:
        cutter.join()
        hosts.separate(apart=False)
    told = str(caught.value)
    assert told.startswith("All 2 ranks wait for one another, and none is late: each has made no ")
    first, second = (re.escape(f"({address})") for address in hosts.addresses)
    either = rf"{first} and \S+ {second}|{second} and \S+ {first}"
    assert re.search(rf"not acknowledged between \S+ ({either})", told), told
    assert "in allreduce_and_mark" in told
    assert "As a consequence" not in told


@LIGHT
@pytest.mark.one_lane
def test_a_host_that_vanishes_costs_one_restart_and_is_left_out(spark, hosts, tmp_path, capsys):
    def wait_to_be_lost(mark: str) -> list[int]:
        from sparkdl_runner import current_world

        world = current_world()
        if world.attempt == 0:
            Path(mark).touch()
            time.sleep(600)
        return [world.attempt, world.size]

    def cut_when_it_runs() -> None:
        while not mark.exists():
            time.sleep(0.05)
        hosts.cut(1)

    DistributedRunner(num_proc=2, backend="horovod").run(print)  # Waits for executors.
    mark = tmp_path / "mark"
    threading.Thread(target=cut_when_it_runs, daemon=True).start()
    config = RunConfig(
        heartbeat_timeout_seconds=10,
        max_restarts=1,
        restart_backoff_seconds=0,
        min_num_proc=1,
        slot_wait_seconds=3,
    )
    try:
        runner = DistributedRunner(num_proc=2, backend="horovod", run_config=config)
        assert runner.run(wait_to_be_lost, mark=str(mark)) == [1, 1]
    finally:
        hosts.mend(1)
    told = capsys.readouterr().err
    assert f"({hosts.addresses[1]}) has vanished: its slots do not count" in told
    assert "2 slots are needed, 1 is there, and 1 will do after that" in told
    # The executor that vanished is not the one that is there when the host is back.
    config = RunConfig(slot_wait_seconds=300)
    assert DistributedRunner(num_proc=2, backend="horovod", run_config=config).run(size_of_all) == 2


def size_of_all() -> int:
    from sparkdl_runner import current_world

    return current_world().size


def train_shards(folder: str) -> dict[str, Any]:
    """Restores; in the first attempt, saves a step and waits to be lost."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from sparkdl_runner import current_world
    from sparkdl_runner.checkpoint import CheckpointManager

    dist.init_process_group("gloo")
    world = current_world()
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (world.size,)))
    optimizer = torch.optim.Adam(model.parameters())
    with CheckpointManager(f"{folder}/checkpoints", memory_copies=1) as checkpoints:
        restored = checkpoints.restore(model, optimizer)
        weights = model.weight.full_tensor().tolist()
        if restored is None and world.attempt == 0:
            checkpoints.save(1, model, optimizer)
            checkpoints.wait()
            run, _ = restart_memory.of_this_rank()
            saved = {"address": world.address, "run": run, "weights": weights}
            Path(f"{folder}/saved-{world.rank}").write_text(json.dumps(saved))
            time.sleep(600)
    step = restored.step if restored else 0
    return {"attempt": world.attempt, "ranks": world.size, "step": step, "weights": weights}


def test_ranks_of_the_host_that_stays_have_in_memory_what_a_lost_one_had_saved(
    spark, hosts, cluster, tmp_path
):
    """Fewer ranks go on, since that host is gone for good. The storage has the manifest alone."""

    def lose_rank_0() -> dict[str, Any]:
        until(lambda: len(list(tmp_path.glob("saved-*"))) == 2)
        saved = json.loads((tmp_path / "saved-0").read_text())
        (manifest,) = tmp_path.glob("checkpoints/step-1/*/manifest.json")
        entries = json.loads(manifest.read_text())["files"]
        try:
            until(lambda: held(saved["run"]) == sorted(one["sha256"] for one in entries * 2))
        finally:
            for entry in entries:
                (manifest.parent / entry["path"]).unlink()
            cluster.lose(hosts.addresses.index(saved["address"]))
        return saved

    until(lambda: len(list_executors(spark.sparkContext)) == 2)
    config = RunConfig(
        max_restarts=1, restart_backoff_seconds=1, min_num_proc=1, slot_wait_seconds=3
    )
    runner = DistributedRunner(num_proc=2, backend="torch", run_config=config)
    with ThreadPoolExecutor(1) as pool:
        losing = pool.submit(lose_rank_0)
        found = runner.run(train_shards, str(tmp_path))
    saved = losing.result()
    assert found == {"attempt": 1, "ranks": 1, "step": 1, "weights": saved["weights"]}
    until(lambda: not list(restart_memory.holders(saved["run"])))
