"""What an allreduce library needs: its environment, what to import early, how its errors look."""

from __future__ import annotations

import importlib.util
import math
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from sparkdl_runner.backends import horovod_refusals, store_relay, torch_store, wrong_backend
from sparkdl_runner.backends.doors import Doors
from sparkdl_runner.backends.private_listener import PrivateListener
from sparkdl_runner.backends.rendezvous import RendezvousStore, address_for_ranks
from sparkdl_runner.backends.store_relay import StoreRelay
from sparkdl_runner.config import RunConfig
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.wire import network
from sparkdl_runner.wire.control import Line
from sparkdl_runner.world import World

Release = Callable[[], None]
Tell = Callable[[str], None]

# The driver names the rank that is late; a library that gave up first would blame the one that
# waited. It counts where no driver is heard.
BEHIND_THE_DRIVER_SECONDS = 60
# Libraries count milliseconds in 32 bits here and there.
MOST_SECONDS = 2_000_000


class Backend(ABC):
    """One allreduce library.

    Attributes:
        name: What the user writes.
        imports: Modules that a worker imports while the agents still find one another.
        store_in_worker: Whether rank 0's worker serves the rendezvous, behind a relay in its
            agent, and so stays until all ranks have ended. Else the agent serves it.
    """

    name: str
    imports: tuple[str, ...]
    store_in_worker: bool

    def check_installed(self) -> None:
        """Looks for the library without importing it.

        Raises:
            LaunchError: It is not installed in this Python.
        """
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise LaunchError(self.missing_sentence)

    packages: tuple[str, ...]
    missing_sentence: str

    join_functions: tuple[tuple[str, str], ...]
    """The backend's rendezvous in user code: the end of a file's path, and a function in it."""
    waiting_in: tuple[str, ...]
    """Parts of the paths of files in which a rank waits for its peers."""
    may_wait_in: tuple[str, ...] = ()
    """Parts of the paths of files in which it works, or waits: not to be told from outside."""

    @abstractmethod
    def environment(
        self,
        world: World,
        address: str,
        port: int,
        *,
        secret: str,
        config: RunConfig,
        run: str,
    ) -> dict[str, str]:
        """The variables that make user code find its peers.

        See ``environment.beside_own`` for those that a user's own come before.

        Args:
            world: The rank's place.
            address: Where rank 0 serves the rendezvous.
            port: Its port.
            secret: What a rank must know there, where the library lets it say so.
            config: Says how long a rank may wait, and how often all may start again.
            run: The run's own name.
        """

    @abstractmethod
    def is_communication_error(self, error: BaseException) -> bool:
        """Whether ``error`` says that a peer was lost, and so is an effect, not a cause."""

    def advice(self, error: BaseException) -> str:
        """What to do about an error of the function's, where its own words do not say; else ""."""
        return ""

    def listen(self, address: str) -> Doors:
        """Opens, in rank 0's agent, what the rendezvous is to listen on at ``address``."""
        return Doors(network.listen(address))

    @abstractmethod
    def serve(
        self, doors: Doors, peers: frozenset[str], *, num_proc: int, secret: str, tell: Tell
    ) -> Release:
        """Serves the rendezvous from this process, to ``peers`` alone.

        Args:
            doors: What ``listen`` returned.
            peers: The IP addresses that may connect.
            num_proc: How many ranks there are.
            secret: See ``environment``.
            tell: Takes a sentence on what somebody did there who is no rank.

        Returns:
            What to call at the end of the run.
        """

    def join_in_worker(self, listener: socket.socket | None) -> None:  # noqa: B027 - most need none
        """Does, in the worker, what must precede the user's own call; the environment is set.

        Args:
            listener: What rank 0's worker serves the store on, where it does.
        """

    def stay_in_worker(self, line: Line) -> None:  # noqa: B027 - most need nothing
        """Waits, at a worker's end, for those that need what it serves."""


def _join_seconds(config: RunConfig) -> int:
    """How long a library may wait for ranks that are late."""
    seconds = math.ceil(config.rendezvous_timeout_seconds) + BEHIND_THE_DRIVER_SECONDS
    return min(seconds, MOST_SECONDS)


def _common_environment(world: World, config: RunConfig, run: str) -> dict[str, str]:
    """What both backends set: torchrun's contract, from which other libraries learn their place.

    See ``torch/distributed/run.py`` and ``LocalElasticAgent._start_workers``. All ranks have one
    role, which has torchrun's default name.
    """
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "GROUP_RANK": str(world.host_rank),
        "GROUP_WORLD_SIZE": str(world.num_hosts),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(world.rank),
        "ROLE_WORLD_SIZE": str(world.size),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": str(world.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "NCCL_SOCKET_IFNAME": f"={world.interface}",
    }


class HorovodBackend(Backend):
    """Horovod over gloo, with NCCL for GPU tensors where the wheel was built for it.

    The variables are those that Horovod 0.28.1's ``gloo_context.cc`` reads.
    """

    name = "horovod"
    imports = ("torch", "horovod.torch")
    store_in_worker = False
    join_functions = (("horovod/common/basics.py", "init"),)
    waiting_in = ("/horovod/",)
    packages = ("horovod",)
    missing_sentence = (
        "Horovod is not installed here: run conf/horovod/build.sh of sparkdl_runner, which builds "
        "Horovod 0.28.1 for the installed torch and installs it (on Databricks, make it the "
        'cluster\'s init script); or use DistributedRunner(backend="torch"), which needs none.'
    )

    def environment(
        self,
        world: World,
        address: str,
        port: int,
        *,
        secret: str,
        config: RunConfig,
        run: str,
    ) -> dict[str, str]:
        """See ``Backend.environment``."""
        return {
            **_common_environment(world, config, run),
            "HOROVOD_RANK": str(world.rank),
            "HOROVOD_SIZE": str(world.size),
            "HOROVOD_LOCAL_RANK": str(world.local_rank),
            "HOROVOD_LOCAL_SIZE": str(world.local_size),
            "HOROVOD_CROSS_RANK": str(world.cross_rank),
            "HOROVOD_CROSS_SIZE": str(world.cross_size),
            # The local ranks of a host meet in the store under this name; with Horovod's default,
            # "localhost", the ranks of all hosts would meet in one place.
            "HOROVOD_HOSTNAME": world.host_id,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": world.interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address_for_ranks(address, port, secret),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(_join_seconds(config)),
        }

    def is_communication_error(self, error: BaseException) -> bool:
        """See ``Backend.is_communication_error``."""
        return type(error).__name__ == "HorovodInternalError" and not horovod_refusals.is_one(error)

    def advice(self, error: BaseException) -> str:
        """See ``Backend.advice``."""
        return horovod_refusals.advice(error) or wrong_backend.advice_on_torch(error)

    def serve(
        self, doors: Doors, peers: frozenset[str], *, num_proc: int, secret: str, tell: Tell
    ) -> Release:
        """See ``Backend.serve``."""
        store = RendezvousStore(doors.public, peers, num_proc=num_proc, secret=secret, tell=tell)
        store.start()
        return store.close


class TorchBackend(Backend):
    """``torch.distributed`` with the ``env://`` rendezvous, as ``torchrun`` would set it up."""

    name = "torch"
    imports = ("torch", "torch.distributed")
    store_in_worker = True
    join_functions = (("torch/distributed/distributed_c10d.py", "init_process_group"),)
    waiting_in = ("/torch/distributed/", "/sparkdl_runner/backends/torch_store.py")
    # DistributedDataParallel waits for its peers inside of backward(), in native code.
    may_wait_in = ("/torch/autograd/graph.py",)
    packages = ("torch",)
    missing_sentence = (
        "PyTorch is not installed here: run pip install 'sparkdl-runner[torch]' on the driver "
        "and on every executor."
    )

    def environment(
        self,
        world: World,
        address: str,
        port: int,
        *,
        secret: str,
        config: RunConfig,
        run: str,
    ) -> dict[str, str]:
        """See ``Backend.environment``."""
        return {
            **_common_environment(world, config, run),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": world.interface,
            torch_store.JOIN_SECONDS: str(_join_seconds(config)),
            # The store is already there, and stays; env:// must connect, not serve.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }

    def is_communication_error(self, error: BaseException) -> bool:
        """See ``Backend.is_communication_error``."""
        if type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError"):
            return True
        # Gloo's errors are plain RuntimeErrors that name the C++ file they come from.
        return type(error) is RuntimeError and "/gloo/" in str(error)

    def listen(self, address: str) -> Doors:
        """See ``Backend.listen``."""
        return store_relay.listen(address)

    def serve(
        self, doors: Doors, peers: frozenset[str], *, num_proc: int, secret: str, tell: Tell
    ) -> Release:
        """See ``Backend.serve``; torch's clients can tell no secret."""
        store = cast(PrivateListener, doors.private)
        if store.unfiltered:
            tell(
                "sparkdl_runner: Other users of this host can reach torch's store, and change what "
                f"it holds: this kernel takes no filter for a socket ({store.unfiltered}). Share "
                "the host with nobody."
            )
        relay = StoreRelay(doors.public, store, peers, num_proc=num_proc)
        relay.start()
        return relay.close

    def advice(self, error: BaseException) -> str:
        """See ``Backend.advice``."""
        return torch_store.advice(error)

    def join_in_worker(self, listener: socket.socket | None) -> None:
        """Serves the store in rank 0, where its agent's relay finds it."""
        # A single rank is all there is, as Horovod then takes it to be.
        if int(os.environ["WORLD_SIZE"]) > 1:
            wrong_backend.refuse_horovod()
        torch_store.wait_as_long_as_promised()
        torch_store.give_each_group_its_own_keys()
        if listener is not None:
            torch_store.serve(listener)

    def stay_in_worker(self, line: Line) -> None:
        """See ``Backend.stay_in_worker``."""
        torch_store.stay(line)


BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (HorovodBackend(), TorchBackend())
}


def get_backend(name: str) -> Backend:
    """Looks up a backend.

    Raises:
        ValueError: There is none of that name.
    """
    if not isinstance(name, str) or name not in BACKENDS:
        raise ValueError(
            f"backend is {name!r}; it must be one of "
            + " and ".join(repr(known) for known in BACKENDS)
            + "."
        )
    return BACKENDS[name]
