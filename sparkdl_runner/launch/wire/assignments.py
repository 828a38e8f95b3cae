"""Assignments: each agent's rank and the addresses it needs, assigned once all agents are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.rank.world import Peer, World, assign_ranks, servers_of, visible_gpus


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A rank's place, and where it meets the others."""

    world: World
    gpus: tuple[str, ...]
    """The value of ``CUDA_VISIBLE_DEVICES``; empty if Spark assigned no GPUs."""
    address: str
    """The IP address of rank 0."""
    rendezvous_port: int
    copy_port: int
    """The port of the copy of rank 0's store on the rank's own host; 0 if there is none."""
    exit_port: int
    peers: tuple[str, ...] = ()
    """The IP addresses of all hosts. Only those get them whom others connect to."""
    servers: tuple[str, ...] = ()
    """Host and port of each rank's own server, by rank, where the backend has such."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Assignment:
        """Rebuilds the value that ``to_json`` returned."""
        tuples = {name: tuple(fields[name]) for name in ("gpus", "peers", "servers")}
        return cls(**{**fields, **tuples, "world": World.from_json(fields["world"])})


def assignments_of(
    peers: Sequence[Peer], *, backend: str, attempt: int, version: str
) -> dict[int, Assignment]:
    """Gives every peer its assignment.

    Args:
        peers: One per partition, in any order.
        backend: The backend's name.
        attempt: Which submission this is.
        version: The driver's version of this package.

    Returns:
        The assignment of each partition.

    Raises:
        LaunchError: A host has another version of this package, or GPUs are shared out wrongly.
    """
    for peer in peers:
        if peer.version != version:
            raise LaunchError(
                f"Host {peer.host} has sparkdl_runner {peer.version}, the driver has "
                f"{version}. Install the same version everywhere."
            )
    worlds = assign_ranks(peers, backend=backend, attempt=attempt)
    hosts: dict[str, list[Peer]] = {}
    for peer in peers:
        hosts.setdefault(peer.host_key, []).append(peer)
    gpus = {key: visible_gpus(members, key) for key, members in hosts.items()}
    addresses = tuple(sorted({address for peer in peers for address in peer.addresses}))
    servers = servers_of(peers, worlds) if any(peer.server_port for peer in peers) else ()
    copies = {
        peer.host_key: peer.rendezvous_port
        for peer in peers
        if worlds[peer.partition].local_rank == 0
    }
    first = next(peer for peer in peers if peer.partition == 0)
    return {
        peer.partition: Assignment(
            world=worlds[peer.partition],
            gpus=gpus[peer.host_key],
            address=first.address,
            rendezvous_port=first.rendezvous_port,
            copy_port=copies[peer.host_key],
            exit_port=first.exit_port,
            peers=addresses if peer is first or servers else (),
            servers=servers,
        )
        for peer in peers
    }
