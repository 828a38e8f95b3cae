"""The backends: what each allreduce library needs, and how its errors look.

One file for each library, and what their rendezvous have in common. Imported by the runner, the
launchers, the agent, the worker, the jobs and the doctor.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.rank.world import World

# A worker's start is part of every launch, and it serves no rendezvous: what that takes is imported
# by the methods that need it.
if TYPE_CHECKING:
    from sparkdl_runner.launch.backends.listeners import Listeners
    from sparkdl_runner.launch.wire.attempt import AttemptSpec
    from sparkdl_runner.launch.wire.control import WorkerPipe
    from sparkdl_runner.launch.wire.network import PortRange

# The first optimizer imports torch._dynamo, which takes as long as torch itself. Three of its parts
# come before it: a worker may be asked for between two modules.
OF_TORCHS_TRAININGS = (
    *("sympy", "torch.fx.experimental.symbolic_shapes", "torch.distributed.fsdp"),
    *("torch._dynamo", "sparkdl_runner.checkpoint.manager"),
)

Release = Callable[[], None]
Tell = Callable[[str], None]

BACKENDS = {
    "horovod": "HorovodBackend",
    "torch": "TorchBackend",
    "tensorflow": "TensorflowBackend",
}


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """The service by which the ranks of an attempt find one another, and who may use it."""

    address: str
    """The address at which rank 0 serves it."""
    port: int
    secret: str = field(repr=False)
    """The secret that a rank must show, if the library can send one."""
    peers: frozenset[str]
    """The IP addresses that may connect."""
    num_proc: int
    attempt: AttemptSpec
    """What the ranks run, and how long one may wait for the others."""
    servers: tuple[str, ...] = ()
    """Host and port of each rank's own server, by rank, where the backend has such."""
    copy_port: int = 0
    """The port of the copy of rank 0's store on the rank's own host; 0 if there is none."""

    @property
    def url(self) -> str:
        """Where ranks ``PUT`` and ``GET`` the bytes of ``/scope/key`` in rank 0's store.

        A key that is not there yet is a 404: ask again.
        """
        from sparkdl_runner.launch.backends.rendezvous.server import prefix_of

        return f"http://{self.address}:{self.port}{prefix_of(self.secret, self.port)}"


class Backend(ABC):
    """One allreduce library."""

    name: str
    """The name that the user writes."""
    imports: tuple[str, ...]
    """Modules that a worker imports while the agents still find one another."""
    imported_by_trainings: tuple[str, ...] = ()
    """Modules that nearly every training imports next, one after the other. So does the template of
    a run that may restart."""
    store_in_worker: bool
    """Whether rank 0's worker serves the rendezvous, behind a relay in its agent, and so stays
    until all ranks have ended. Else the agent serves it."""
    copies_store = False
    """Whether each host's first agent serves its ranks a copy of rank 0's store."""
    join_call: str
    """How user code joins its peers, as it is written."""
    joins: tuple[str, str]
    """The function that this call reaches: its module, and its name or ``Class.method``."""
    join_functions: tuple[tuple[str, str], ...]
    """Where a rank waits for its peers: the end of a file's path, and the function there."""
    waiting_in: tuple[str, ...]
    """Parts of the paths of files in which a rank waits for its peers."""
    may_wait_in: tuple[str, ...] = ()
    """Parts of the paths of files in which working cannot be told from waiting."""
    raised_by_all: tuple[str, ...] = ()
    """How an error's text begins that all ranks raise at once, whichever is its cause."""
    missing_sentence: str
    """What to do if it is not installed."""

    def check_installed(self) -> None:
        """Looks for the library without importing it.

        Raises:
            LaunchError: It is not installed in this Python.
        """
        if importlib.util.find_spec(self.name) is None:
            raise LaunchError(self.missing_sentence)

    @abstractmethod
    def environment(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        """The variables by which user code in a rank finds its peers.

        Some give way to the user's own: see ``environment.beside_own``.
        """

    @abstractmethod
    def is_communication_error(self, error: BaseException) -> bool:
        """Whether ``error`` says that a peer was lost, and so is an effect, not a cause."""

    @abstractmethod
    def advice(self, error: BaseException) -> str:
        """Advice on an error of the function that the error itself does not give; else ""."""

    def hold_port(self) -> socket.socket | None:
        """Takes, in each agent, a port for the server of its own rank; None where there is none.

        All ranks learn its number. The socket is closed when the worker has ended.
        """
        return None

    def listen(self, address: str, port_range: PortRange | None = None) -> Listeners:
        """Opens, in rank 0's agent, what the rendezvous is to listen on at ``address``.

        See ``network.listen``.
        """
        from sparkdl_runner.launch.backends.listeners import Listeners
        from sparkdl_runner.launch.wire import network

        return Listeners(network.listen(address, port_range))

    def serve(self, listeners: Listeners, rendezvous: Rendezvous, tell: Tell) -> Release:
        """Serves the rendezvous from this process: here, the store of ``rendezvous/store.py``.

        Args:
            listeners: What ``listen`` returned.
            rendezvous: Who may come.
            tell: Takes a sentence on what a process that is no rank did there.

        Returns:
            What to call at the end of the run.
        """
        from sparkdl_runner.launch.backends.rendezvous.store import serve

        return serve(listeners, rendezvous, tell)

    def serve_copy(self, listeners: Listeners, rendezvous: Rendezvous) -> Release:
        """Serves this host's ranks a copy of rank 0's store, where ``copies_store``.

        Args:
            listeners: What ``listen`` returned.
            rendezvous: Where the store is.

        Returns:
            What to call at the end of the run.
        """
        raise NotImplementedError(f"the {self.name} backend copies no store")

    def join_in_worker(self, listener: socket.socket | None) -> None:  # noqa: B027 - most need none
        """Does, in the worker, what must precede the user's own call; the environment is set.

        Args:
            listener: What rank 0's worker serves the store on, where it does.
        """

    def stay_in_worker(self, line: WorkerPipe) -> None:  # noqa: B027 - most need nothing
        """Waits, at a worker's end, for those that need what it serves."""


def get_backend(name: str) -> Backend:
    """Looks up a backend, and imports no other.

    Raises:
        ValueError: There is none of that name.
    """
    if not isinstance(name, str) or name not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        raise ValueError(f"backend is {name!r}; it must be one of {known}.")
    module = importlib.import_module(f"{__name__}.{name}_backend")
    backend: Backend = getattr(module, BACKENDS[name])()
    return backend
