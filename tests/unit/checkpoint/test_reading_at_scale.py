"""A host reads each file once, and nobody reads what another has verified for it."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_ranks import CountingStorage, Exchange, ThreadPeers, run_ranks
from sparkdl_runner.checkpoint import CheckpointError, names
from sparkdl_runner.checkpoint.copies.memory_copies import MemoryCopies
from sparkdl_runner.checkpoint.directory import shards
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import read_manifest
from sparkdl_runner.checkpoint.directory.state_files import state_in
from sparkdl_runner.checkpoint.errors import DamageError
from sparkdl_runner.checkpoint.read.host_reader import HostReader
from sparkdl_runner.checkpoint.read.plan import plan_of
from sparkdl_runner.checkpoint.restoring import restore
from sparkdl_runner.checkpoint.save.attempt import begin_together
from sparkdl_runner.checkpoint.save.ownership import Ownership
from sparkdl_runner.checkpoint.save.policy import SavePolicy
from sparkdl_runner.checkpoint.save.retention import Retention
from sparkdl_runner.checkpoint.save.saver import Saver
from sparkdl_runner.checkpoint.save.snapshots import Snapshots
from sparkdl_runner.checkpoint.stateful import Stateful

HOSTS, LOCAL = 4, 4
RETENTION = Retention(keep_last=3, keep_best=None, best_metric=None, best_mode="min")


@st.composite
def worlds(draw):
    sizes = draw(st.lists(st.integers(0, 1000), max_size=12))
    hosts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=9))
    files = st.frozensets(st.integers(0, len(sizes) - 1)) if sizes else st.just(frozenset())
    return sizes, [draw(files) for _ in hosts], hosts


def reads_of(plans, rank):
    """The files that a rank reads from the storage."""
    shared = [file for file, (reader, _) in plans[rank].places.items() if reader == rank]
    return [*plans[rank].own, *shared, *plans[rank].checked]


@settings(max_examples=50)
@given(worlds())
def test_every_host_reads_what_it_needs_once_and_every_file_is_read(world):
    sizes, needs, hosts = world
    plans = [plan_of(rank, sizes, needs, hosts) for rank in range(len(hosts))]
    everywhere = Counter()
    for host in set(hosts):
        ranks = [rank for rank, one in enumerate(hosts) if one == host]
        reads = Counter(file for rank in ranks for file in reads_of(plans, rank))
        needed = frozenset().union(*(needs[rank] for rank in ranks))
        assert max(reads.values(), default=1) == 1
        assert needed <= reads.keys()
        everywhere += Counter(reads)
        for rank in ranks:
            assert needs[rank] <= {*plans[rank].own, *plans[rank].places}
            assert plans[rank].places == plans[ranks[0]].places
        by_reader: dict[int, list[tuple[int, int]]] = {}
        for file, (reader, begin) in plans[ranks[0]].places.items():
            assert reader in ranks
            by_reader.setdefault(reader, []).append((begin, begin + sizes[file]))
        for spans in by_reader.values():
            ordered = sorted(spans)
            assert all(a[1] <= b[0] for a, b in pairwise(ordered))
    assert everywhere.keys() == set(range(len(sizes)))
    whole = sum(size * everywhere[file] for file, size in enumerate(sizes))
    assert whole <= sum(sizes) * len(set(hosts))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_the_ranks_of_a_host_read_about_the_same(sizes, ranks):
    everything = [range(len(sizes))] * ranks
    plans = [plan_of(rank, sizes, everything, [0] * ranks) for rank in range(ranks)]
    loads = [sum(sizes[file] for file in reads_of(plans, rank)) for rank in range(ranks)]
    assert max(loads) - min(loads) <= max(sizes)


def test_a_hundred_gigabytes_for_1024_ranks_are_read_once_a_host():
    """Whole: 128 files that all need, and two small ones of each rank."""
    ranks, local, size = 1024, 8, 100 << 30
    sizes = [size // 128] * 128 + [17_848] * ranks + [400] * ranks
    needs = [frozenset([*range(128), 128 + rank]) for rank in range(ranks)]
    hosts = [rank // local for rank in range(ranks)]
    first = [plan_of(rank, sizes, needs, hosts) for rank in range(local)]
    by_rank = [sum(sizes[file] for file in reads_of(first, rank)) for rank in range(local)]
    assert sum(by_rank) <= sum(sizes)
    assert max(by_rank) <= size / local + 1e6
    # In shards, of which each rank needs its own: the checkpoint is read once by all together.
    sizes = [size // ranks] * ranks
    needs = [[rank] for rank in range(ranks)]
    some = [plan_of(rank, sizes, needs, hosts) for rank in (0, 511, 1023)]
    assert [one.own for one in some] == [(0,), (511,), (1023,)]
    assert not any(one.places or one.checked for one in some)


class Scheduler:
    def __init__(self) -> None:
        self.state: dict = {}

    def state_dict(self):
        return {"steps": 5}

    def load_state_dict(self, state):
        self.state = state


def given_state(scale: float) -> Stateful:
    model = torch.nn.Linear(400, 400)
    with torch.no_grad():
        model.weight.fill_(scale)
        model.bias.fill_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=scale)
    return Stateful.of(model, optimizer, None, {"scheduler": Scheduler()})


def memories() -> list[str]:
    """What this process has open of that in which the ranks of a host share what they read."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # Another thread has closed it.
            found.append(os.readlink(descriptor))
    return [name for name in found if name.startswith("/memfd:sparkdl")]


def save_together(storage, peers) -> Counter:
    attempt = begin_together(storage, peers)
    saver = Saver(storage, RETENTION, SavePolicy(), MemoryCopies(is_wanted=False))
    snapshots = Snapshots(storage, None, RETENTION)
    job = snapshots.take(
        attempt, step=1, given=given_state(3.0), extra=[1], epoch=None, metrics=None
    )
    peers.any_rank(False)
    storage.counts.clear()
    saver.start(job)
    saver.wait()
    return storage.counts


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of 16 ranks on 4 hosts, and what rank 0 asked the storage while it was saved."""
    folder = tmp_path_factory.mktemp("saved")
    counts = run_ranks(
        HOSTS, LOCAL, lambda peers: save_together(CountingStorage(str(folder)), peers)
    )
    (name,) = committed(CountingStorage(str(folder)))
    return folder, name, counts[0]


def test_rank_0_looks_once_for_the_lists_of_all_ranks(saved):
    _, _, counts = saved
    assert counts["HEAD"] <= 2, "one for each rank before"
    assert counts["GET"] <= HOSTS * LOCAL


@pytest.mark.parametrize("hosts", [1, HOSTS])
def test_ranks_restore_with_one_read_a_host(saved, hosts):
    folder, name, _ = saved
    storage = CountingStorage(str(folder))
    size = sum(path.stat().st_size for path in (folder / str(name)).rglob("*") if path.is_file())

    def work(peers):
        target = given_state(0.0)
        restored = restore(storage, peers, target)
        assert restored.extra == [1]
        assert target.others["scheduler"].state == {"steps": 5}
        assert torch.all(target.model.weight == 3)
        assert target.optimizer.param_groups[0]["lr"] == 3
        return restored.step

    steps = run_ranks(hosts, HOSTS * LOCAL // hosts, work)
    assert steps == [1] * HOSTS * LOCAL
    assert memories() == []
    in_it = {one: count for one, count in storage.read_bytes.items() if one.startswith(str(name))}
    assert size <= sum(in_it.values()) <= hosts * size
    manifest = (folder / str(name) / "manifest.json").stat().st_size
    assert in_it[f"{name}/manifest.json"] == manifest, "rank 0 reads it for all"
    model = (folder / str(name) / "model.safetensors").stat().st_size
    assert in_it[f"{name}/model.safetensors"] == hosts * model


def test_ranks_that_cannot_share_read_for_themselves(saved, monkeypatch):
    folder, name, _ = saved
    monkeypatch.setattr("sparkdl_runner.checkpoint.read.host_reader._open_memory", lambda *_: -1)
    storage = CountingStorage(str(folder))
    restored = run_ranks(1, 3, lambda peers: restore(storage, peers, given_state(0.0)))
    assert [one.step for one in restored] == [1] * 3
    model = (folder / str(name) / "model.safetensors").stat().st_size
    assert storage.read_bytes[f"{name}/model.safetensors"] == 3 * model


def test_what_one_rank_finds_damaged_all_pass_over_and_say_why(saved, tmp_path):
    folder, name, _ = saved
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / str(name) / "rng-5.safetensors").write_bytes(b"?")
    storage = CountingStorage(str(tmp_path))
    with pytest.warns(UserWarning, match=r"passed over by rank 5: rng-5.safetensors has 1 bytes"):
        restored = run_ranks(2, 3, lambda peers: restore(storage, peers, given_state(0.0)))
    assert restored == [None] * 6


def test_a_file_of_shards_that_no_list_has_is_damage(saved):
    folder, name, _ = saved
    storage = CountingStorage(str(folder))

    def work(peers):
        reader = HostReader(storage, read_manifest(storage, name), peers, [])
        try:
            with pytest.raises(DamageError, match=r"sharded/rank-0.safetensors is not in its list"):
                reader.load_shards("sharded/rank-0.safetensors")
        finally:
            reader.close()

    run_ranks(1, 1, work)


def test_the_memory_of_a_host_is_let_go(saved):
    folder, name, _ = saved
    storage = CountingStorage(str(folder))

    def work(peers):
        manifest = read_manifest(storage, name)
        states = {state_in(one.path) for one in manifest.files}
        reader = HostReader(storage, manifest, peers, states)
        reader.fetch()
        peers.any_rank(False)  # Once all have fetched, each finds what it needs.
        for one in manifest.files:
            assert len(reader.read(one.path)) == one.size_bytes
        views = list(reader._views.values())
        reader.close()
        return [view.closed for view in views]

    closed = run_ranks(1, 2, work)
    assert any(closed), "one reads what the other has fetched"
    assert all(map(all, closed))


@settings(max_examples=25)
@given(st.lists(st.frozensets(st.sampled_from("abcdefg")), min_size=1, max_size=6))
def test_the_names_of_ranks_are_those_that_they_have(of_ranks):
    found = run_ranks(1, len(of_ranks), lambda p: names.names_of_ranks(p, of_ranks[p.rank]))
    assert all(one == found[0] for one in found)
    for rank, mine in enumerate(of_ranks):
        assert names.in_none("abcdefg", found[0][rank : rank + 1]) == set("abcdefg") - mine
    assert names.in_none("abcdefg", found[0]) == set("abcdefg") - frozenset().union(*of_ranks)


def test_the_parts_of_many_ranks_are_put_together_and_each_block_counts_once():
    def part(rank: int, place: int) -> dict:
        shard = {"path": f"rank-{rank}", "key": "w", "offsets": [place], "sizes": [1]}
        tensors = {"w": {"shape": [4], "dtype": "torch.float32", "shards": [shard]}}
        return {"tensors": tensors, "values": {f"v{place}": {"path": f"rank-{rank}", "key": "v"}}}

    whole = shards.merge(part(rank, rank % 4) for rank in range(8))
    assert [one["path"] for one in whole["tensors"]["w"]["shards"]] == [
        f"rank-{rank}" for rank in range(4)
    ]
    assert sorted(whole["values"]) == ["v0", "v1", "v2", "v3"]
    with pytest.raises(CheckpointError, match="shards of w hold 3 of its 4 elements"):
        shards.merge(part(rank, rank) for rank in range(3))


def test_ranks_tell_their_names_again_only_when_they_change():
    ranks, count = 4, 100
    exchange = Exchange(ranks)

    def save(peers: ThreadPeers) -> list[int]:
        parts, told = Ownership(None), []
        for more in ([], [], ["momentum"]):
            keys = {f"{peers.rank // 2}.{number}" for number in range(count)} | {*more}
            own = parts.own_of(peers, keys)
            assert own == (set() if peers.rank % 2 else keys - ({*more} if peers.rank else set()))
            told.append(exchange.numbers)
        return told

    with ThreadPoolExecutor(ranks) as threads:
        told = threads.map(lambda rank: save(ThreadPeers(rank, exchange)), range(ranks))
        first, second, third = list(told)[0]  # noqa: RUF015 - all are to end
    assert first >= 2 * count
    assert second - first == 1, "whether any has changed"
    assert third - second >= 2 * count


def test_names_that_many_ranks_share_are_told_once():
    ranks, stages, count = 16, 4, 100
    exchange = Exchange(ranks)
    peers = [ThreadPeers(rank, exchange) for rank in range(ranks)]
    with ThreadPoolExecutor(ranks) as threads:
        list(
            threads.map(
                lambda p: names.names_of_ranks(
                    p, [f"{p.rank % stages}.{number}" for number in range(count)]
                ),
                peers,
            )
        )
    assert exchange.numbers <= stages * count + 4 * ranks
