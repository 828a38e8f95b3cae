"""The ranks of one run as a frozen value, and how they follow from the hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparkdl_runner.errors import LaunchError


@dataclass(frozen=True, kw_only=True)
class World:
    """The place of one rank among all ranks.

    ``local_*`` count the ranks of one host, ``cross_*`` the ranks of equal ``local_rank`` over
    all hosts; the meaning is Horovod's.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host_rank: int = 0
    """The number of this host among the run's hosts, from 0."""
    num_hosts: int = 1
    host: str
    """The host's name, for people."""
    host_id: str
    """A name that no other host of this run has, even where two hosts share a hostname."""
    address: str
    """The IP address on which this rank's host talks to the others."""
    interface: str
    """The network interface that has ``address``."""
    backend: str
    attempt: int = 0
    """Which submission of the gang this is, from 0."""
    shares_name: bool = False
    """Whether another host of this run has the same name."""

    @property
    def place(self) -> str:
        """The host, for people: its name, with its address where the name leaves a doubt."""
        return f"{self.host} ({self.address})" if self.shares_name else self.host

    def in_task(self, ranks: int) -> World:
        """The same place where each Spark task counts as a node of its own.

        Args:
            ranks: How many ranks each task has. They are consecutive.
        """
        task, local_rank = divmod(self.rank, ranks)
        return replace(
            self,
            local_rank=local_rank,
            local_size=ranks,
            cross_rank=task,
            cross_size=self.size // ranks,
            host_rank=task,
            num_hosts=self.size // ranks,
            host_id=f"{self.host_id}-task{task}",
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> World:
        """Rebuilds the value that ``to_json`` returned."""
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One agent's report of itself, before ranks are known."""

    partition: int
    """Its number: that of its Spark task, or where a task has several ranks, of its place there."""
    host: str
    host_key: str
    """Equal on two agents exactly if they share a host (hostname, namespaces and address)."""
    address: str
    interface: str
    addresses: tuple[str, ...] = ()
    """All addresses of the host; from which one it reaches a peer is the kernel's choice."""
    gpus: tuple[str, ...] = ()
    """The task's GPUs by index or UUID, as ``CUDA_VISIBLE_DEVICES`` takes them."""
    rendezvous_port: int = 0
    """The port of partition 0's rendezvous, or of another partition's copy; 0 for neither."""
    server_port: int = 0
    """The port that is held for the rank's own server; 0 where the backend has none."""
    exit_port: int = 0
    """The port on which partition 0 waits until the other ranks have ended; 0 if it does not."""
    version: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Peer:
        """Rebuilds the value that ``to_json`` returned."""
        tuples = {name: tuple(fields[name]) for name in ("addresses", "gpus")}
        return cls(**{**fields, **tuples})


def assign_ranks(peers: Sequence[Peer], *, backend: str, attempt: int = 0) -> dict[int, World]:
    """Gives every peer its rank.

    Ranks on one host are contiguous; hosts come in the order of their lowest partition, so
    partition 0 is rank 0. Within a host, ranks follow partitions.

    Args:
        peers: One per partition, in any order.
        backend: The backend's name, recorded in each world.
        attempt: Recorded in each world.

    Returns:
        The world of each partition.
    """
    hosts: dict[str, list[Peer]] = {}
    for peer in sorted(peers, key=lambda peer: peer.partition):
        hosts.setdefault(peer.host_key, []).append(peer)
    worlds: dict[int, World] = {}
    names = Counter(members[0].host for members in hosts.values())
    cross_sizes = Counter(turn for members in hosts.values() for turn in range(len(members)))
    cross_ranks: Counter[int] = Counter()
    for host_rank, members in enumerate(hosts.values()):
        for local_rank, peer in enumerate(members):
            worlds[peer.partition] = World(
                rank=len(worlds),
                size=len(peers),
                local_rank=local_rank,
                local_size=len(members),
                cross_rank=cross_ranks[local_rank],
                cross_size=cross_sizes[local_rank],
                host_rank=host_rank,
                num_hosts=len(hosts),
                host=peer.host,
                host_id=f"host{host_rank}",
                address=peer.address,
                interface=peer.interface,
                backend=backend,
                attempt=attempt,
                shares_name=names[peer.host] > 1,
            )
            cross_ranks[local_rank] += 1
    return worlds


def servers_of(peers: Sequence[Peer], worlds: Mapping[int, World]) -> tuple[str, ...]:
    """Host and port of each rank's own server, by rank.

    Args:
        peers: One per partition, in any order.
        worlds: What ``assign_ranks`` made of them.
    """
    by_rank = sorted(peers, key=lambda peer: worlds[peer.partition].rank)
    return tuple(
        f"[{peer.address}]:{peer.server_port}"
        if ":" in peer.address
        else f"{peer.address}:{peer.server_port}"
        for peer in by_rank
    )


def visible_gpus(peers: Sequence[Peer], host_key: str) -> tuple[str, ...]:
    """Orders a host's GPUs so that ``torch.cuda.set_device(local_rank)`` picks a rank's own.

    Every rank of a host sees all GPUs that the run has there. The first GPU of each rank comes
    first, in local-rank order; what ranks have beyond one follows.

    Args:
        peers: All peers of the run.
        host_key: The host in question.

    Returns:
        The value for ``CUDA_VISIBLE_DEVICES``, as a tuple; empty if Spark assigned no GPUs.

    Raises:
        LaunchError: A GPU was given to two ranks, some ranks of the host have none, or there are
            more than one and MIG instances among them.
    """
    members = sorted(
        (peer for peer in peers if peer.host_key == host_key), key=lambda peer: peer.partition
    )
    owners: dict[str, int] = {}
    for peer in members:
        for gpu in peer.gpus:
            if gpu in owners:
                raise LaunchError(
                    f"GPU {gpu} of host {peer.host} was given to two ranks (Spark partitions "
                    f"{owners[gpu]} and {peer.partition}), which would train on top of each "
                    "other. Set spark.task.resource.gpu.amount to 1 or more."
                )
            owners[gpu] = peer.partition
    with_gpus = [peer for peer in members if peer.gpus]
    if with_gpus and len(with_gpus) < len(members):
        lacking = next(peer for peer in members if not peer.gpus)
        raise LaunchError(
            f"On host {lacking.host} Spark gave GPUs to {len(with_gpus)} of {len(members)} ranks. "
            "Every rank needs one: check spark.executor.resource.gpu.amount and "
            "spark.task.resource.gpu.amount."
        )
    instances = mig_instances(owners)
    if instances and len(owners) > 1:
        raise LaunchError(
            f"On host {members[0].host} Spark gave {len(owners)} GPUs to {len(members)} rank(s), "
            f"and {len(instances)} of them are MIG instances ({', '.join(instances)}); CUDA shows "
            "a process one MIG instance only. Run one rank on each host, with one instance (a pod "
            "counts as a host), or use whole GPUs."
        )
    depth = max((len(peer.gpus) for peer in members), default=0)
    return tuple(
        peer.gpus[turn] for turn in range(depth) for peer in members if turn < len(peer.gpus)
    )


def mig_instances(gpus: Iterable[str]) -> list[str]:
    """Which of some GPUs are MIG instances: parts of one that was cut up, named by their UUIDs.

    CUDA shows a process one of them, whatever it is given: "CUDA Device Enumeration" in
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html.
    """
    return [gpu for gpu in gpus if gpu.startswith("MIG-")]


_current: World | None = None


def current_world() -> World:
    """The world of the calling rank.

    Returns:
        The rank's ``World``; inside the function that a runner runs, and nowhere else.

    Raises:
        RuntimeError: Called outside a worker.
    """
    if _current is None:
        raise RuntimeError(
            "current_world() was called outside a worker: it answers only inside the function "
            "that HorovodRunner or DistributedRunner runs."
        )
    return _current


def in_worker() -> bool:
    """Whether this process is a worker (or was forked from one)."""
    return _current is not None


def enter_world(world: World) -> None:
    """Makes ``world`` the one that ``current_world`` returns. Called once, by the worker."""
    global _current
    _current = world
