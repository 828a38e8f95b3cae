from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.diagnosis import to_error
from sparkdl_runner.launch.wire.assignments import assignments_of
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, World, assign_ranks, current_world, visible_gpus


def peer(partition: int, host: str, gpus: tuple[str, ...] = ()) -> Peer:
    return Peer(
        partition=partition,
        host=host,
        host_key=f"key-{host}",
        address="10.0.0.1",
        interface="eth0",
        gpus=gpus,
    )


hosts_of_partitions = st.lists(st.sampled_from("abcde"), min_size=1, max_size=24)


@given(hosts_of_partitions, st.randoms())
def test_ranks_are_a_permutation_contiguous_by_host_and_start_at_partition_zero(hosts, random):
    peers = [peer(partition, host) for partition, host in enumerate(hosts)]
    shuffled = random.sample(peers, len(peers))
    worlds = assign_ranks(shuffled, backend="torch")

    assert worlds == assign_ranks(peers, backend="torch")
    assert sorted(world.rank for world in worlds.values()) == list(range(len(hosts)))
    assert worlds[0].rank == 0
    by_rank = sorted(worlds.items(), key=lambda item: item[1].rank)
    order = [hosts[partition] for partition, _ in by_rank]
    assert order == sorted(order, key=list(dict.fromkeys(order)).index)  # no host comes twice
    for host in set(hosts):
        members = [world for partition, world in by_rank if hosts[partition] == host]
        assert [world.local_rank for world in members] == list(range(len(members)))
        assert {world.local_size for world in members} == {len(members)}
        assert len({world.host_id for world in members}) == 1
    assert len({world.host_id for world in worlds.values()}) == len(set(hosts))


@given(hosts_of_partitions)
def test_cross_ranks_number_the_ranks_of_equal_local_rank(hosts):
    worlds = assign_ranks(
        [peer(partition, host) for partition, host in enumerate(hosts)], backend="horovod"
    ).values()
    for local_rank in {world.local_rank for world in worlds}:
        column = sorted(
            (world for world in worlds if world.local_rank == local_rank),
            key=lambda world: world.rank,
        )
        assert [world.cross_rank for world in column] == list(range(len(column)))
        assert {world.cross_size for world in column} == {len(column)}


def test_equal_hostnames_with_different_keys_are_two_hosts():
    first = peer(0, "same")
    second = Peer(**{**first.to_json(), "partition": 1, "host_key": "another namespace"})
    worlds = assign_ranks([first, second], backend="horovod")
    assert [worlds[i].local_size for i in (0, 1)] == [1, 1]
    assert [worlds[i].cross_rank for i in (0, 1)] == [0, 1]


def test_hosts_that_share_a_name_are_told_apart_by_their_addresses():
    one, other, third = (peer(partition, "h") for partition in range(3))
    other = replace(other, host_key="other", address="10.0.0.2")
    third = replace(third, host_key="third", host="alone", address="10.0.0.3")
    worlds = assign_ranks([one, other, third], backend="torch")
    places = ["h (10.0.0.1)", "h (10.0.0.2)", "alone"]
    assert [world.place for world in worlds.values()] == places
    told = [
        str(to_error(end, [end]))
        for end in (
            Outcome(world=world, status=Status.DIED, ended_at=0.0) for world in worlds.values()
        )
    ]
    assert told == [
        f"Rank {rank} of 3 on host {place} ended without a result."
        for rank, place in enumerate(places)
    ]


def test_world_and_peer_survive_json():
    one = peer(3, "a", gpus=("0", "GPU-1"))
    assert Peer.from_json(one.to_json()) == one
    world = assign_ranks([peer(0, "a")], backend="torch", attempt=2)[0]
    assert World.from_json(world.to_json()) == world
    assert world.attempt == 2


def test_every_rank_of_a_host_sees_its_gpus_in_local_rank_order():
    peers = [peer(0, "a", ("3",)), peer(1, "b", ("0",)), peer(2, "a", ("1",))]
    assert visible_gpus(peers, "key-a") == ("3", "1")
    assert visible_gpus(peers, "key-b") == ("0",)


def test_set_device_by_local_rank_is_right_with_two_gpus_a_rank():
    peers = [peer(0, "a", ("0", "1")), peer(1, "a", ("2", "3"))]
    visible = visible_gpus(peers, "key-a")
    assert visible[0] in peers[0].gpus
    assert visible[1] in peers[1].gpus
    assert sorted(visible) == ["0", "1", "2", "3"]


def test_no_gpus_is_no_restriction():
    assert visible_gpus([peer(0, "a"), peer(1, "a")], "key-a") == ()


def test_a_gpu_given_to_two_ranks_is_an_error():
    with pytest.raises(LaunchError, match="GPU 0 of host a was given to two ranks"):
        visible_gpus([peer(0, "a", ("0",)), peer(1, "a", ("0",))], "key-a")


def test_a_rank_without_a_gpu_beside_ranks_with_one_is_an_error():
    with pytest.raises(LaunchError, match="gave GPUs to 1 of 2 ranks"):
        visible_gpus([peer(0, "a", ("0",)), peer(1, "a")], "key-a")


MIG = ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-GPU-5d5ba0d6-d33d-2b2c-524d/7/0")


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        (
            [MIG[:1], MIG[1:]],
            rf"gave 2 GPUs to 2 rank\(s\), and 2 of them .* \({MIG[0]}, {MIG[1]}\)",
        ),
        ([MIG], r"gave 2 GPUs to 1 rank\(s\), and 2 of them"),
        ([("0",), MIG[:1]], rf"gave 2 GPUs to 2 rank\(s\), and 1 of them .* \({MIG[0]}\)"),
    ],
)
def test_a_host_with_several_mig_instances_is_told_what_cuda_shows(gpus, told):
    peers = [peer(0, "b", ("0",)), *(peer(1 + at, "a", own) for at, own in enumerate(gpus))]
    with pytest.raises(
        LaunchError, match=f"On host a Spark {told}.* one MIG instance only. Run one"
    ):
        visible_gpus(peers, "key-a")
    assert visible_gpus(peers, "key-b") == ("0",)


def test_one_mig_instance_on_each_host_is_as_good_as_a_gpu():
    peers = [peer(0, "a", MIG[:1]), peer(1, "b", MIG[1:])]
    assert visible_gpus(peers, "key-a") == MIG[:1]
    assert visible_gpus(peers, "key-b") == MIG[1:]


def test_current_world_outside_a_worker_says_where_it_works():
    with pytest.raises(RuntimeError, match="inside the function that HorovodRunner"):
        current_world()


def test_each_agent_is_told_what_it_needs_alone():
    peers = [
        replace(
            peer(partition, "ab"[partition % 2], (str(partition),)),
            addresses=(f"10.0.0.{partition % 2}",),
            rendezvous_port=7000 if partition == 0 else 0,
        )
        for partition in range(4)
    ]
    assignments = assignments_of(peers, backend="torch", attempt=1, version="")
    assert {one: assignments[one].world for one in assignments} == assign_ranks(
        peers, backend="torch", attempt=1
    )
    assert [assignments[partition].gpus for partition in range(4)] == [("0", "2"), ("1", "3")] * 2
    assert {assignment.rendezvous_port for assignment in assignments.values()} == {7000}
    assert assignments[0].peers == ("10.0.0.0", "10.0.0.1")
    assert [assignments[partition].peers for partition in (1, 2, 3)] == [(), (), ()]
    # Agents report in any order.
    assert assignments_of(peers[::-1], backend="torch", attempt=1, version="") == assignments
    # Where each rank has a server of its own, all connect to all.
    with_ports = [replace(one, rendezvous_port=100 + one.partition) for one in peers]
    copies = assignments_of(with_ports, backend="horovod", attempt=0, version="")
    for assignment in copies.values():  # A host's first rank serves the others of its host.
        same_host = [one for one in copies if copies[one].world.host_id == assignment.world.host_id]
        assert assignment.copy_port == 100 + min(same_host)
        assert assignment.rendezvous_port == 100
    with_servers = [replace(one, server_port=9000 + one.partition) for one in peers]
    assignments = assignments_of(with_servers, backend="tensorflow", attempt=1, version="")
    assert {len(assignment.servers) for assignment in assignments.values()} == {4}
    assert {assignment.peers for assignment in assignments.values()} == {("10.0.0.0", "10.0.0.1")}
