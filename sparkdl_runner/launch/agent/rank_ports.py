"""The ports of an agent: opened before their numbers are told, and served once ranks are known."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from sparkdl_runner.launch.backends import Backend, Rendezvous
from sparkdl_runner.launch.backends.exit_barrier import ExitBarrier, enter_exit_barrier
from sparkdl_runner.launch.backends.listeners import Listeners
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.assignments import Assignment
from sparkdl_runner.rank.world import Peer


@dataclass(frozen=True, kw_only=True)
class RankPorts:
    """The listening sockets of one agent; None where it needs none.

    They stay open from before their numbers are told: another process could take a port that is
    picked, closed and bound again.
    """

    backend: Backend
    store: Listeners | None
    """Of the rendezvous: rank 0's, or a host's copy of it."""
    server: socket.socket | None
    """Kept for the rank's own server."""
    exits: socket.socket | None
    """For the connections of the other agents, each of which ends with its rank."""

    @classmethod
    def open(
        cls,
        stack: ExitStack,
        backend: Backend,
        address: str,
        port_range: network.PortRange | None,
        *,
        is_first: bool,
    ) -> RankPorts:
        """Opens what the agent will serve.

        Args:
            stack: Closes all of them.
            backend: Says what it needs.
            address: The IP address to listen on.
            port_range: The ports that a firewall lets through.
            is_first: Whether its rank will be 0.
        """
        store = exits = None
        if is_first or backend.copies_store:
            # A copy is for the ranks of its own host, so no firewall is in their way.
            store = backend.listen(address, port_range if is_first else None)
            stack.callback(store.close)
        server = backend.hold_port()
        if server is not None:
            stack.callback(server.close)
        if store is not None and backend.store_in_worker:
            exits = network.listen(address, port_range)
            stack.callback(exits.close)
        return cls(backend=backend, store=store, server=server, exits=exits)

    def told_by(self, agent: Peer) -> Peer:
        """The agent's report of itself, with their numbers; 0 for none."""
        return replace(
            agent,
            rendezvous_port=0 if self.store is None else self.store.port,
            server_port=0 if self.server is None else self.server.getsockname()[1],
            exit_port=0 if self.exits is None else self.exits.getsockname()[1],
        )

    def serve(
        self,
        stack: ExitStack,
        assignment: Assignment,
        rendezvous: Rendezvous,
        *,
        secret: str,
        tell: Callable[[str], None],
        release: Callable[[], None],
    ) -> None:
        """Serves the rendezvous and the exit barrier, or enters the barrier of rank 0.

        Args:
            stack: Ends all of it.
            assignment: The rank, and where rank 0 is.
            rendezvous: Who may come.
            secret: What all agents of the attempt know, for the exit barrier.
            tell: Takes a sentence on what a process that is no rank did at the rendezvous.
            release: Called once all other ranks have ended.

        Raises:
            RunnerError: Rank 0's agent cannot be reached.
        """
        world = assignment.world
        if self.store is not None:
            if world.rank == 0:
                stack.callback(self.backend.serve(self.store, rendezvous, tell=tell))
            elif world.local_rank == 0:
                stack.callback(self.backend.serve_copy(self.store, rendezvous))
            else:
                self.store.close()
        if self.exits is not None:
            others = world.size - 1
            barrier = ExitBarrier(self.exits, rendezvous.peers, others, secret, release)
            barrier.start()
            stack.callback(barrier.close)
        elif self.backend.store_in_worker:
            place = assignment.address, assignment.exit_port
            stack.enter_context(enter_exit_barrier(*place, world.rank, secret))
