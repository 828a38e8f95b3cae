"""``torch.distributed`` as a backend."""

from __future__ import annotations

import os
import re
import socket
import traceback
from typing import TYPE_CHECKING

from sparkdl_runner.launch.backends import (
    OF_TORCHS_TRAININGS,
    Backend,
    Release,
    Rendezvous,
    Tell,
    destroyed_groups,
    joined,
    torch_store,
    wrong_backend,
)
from sparkdl_runner.launch.backends.environment import common_environment, join_seconds
from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.rank.world import World

if TYPE_CHECKING:
    from sparkdl_runner.launch.backends.listeners import Listeners
    from sparkdl_runner.launch.wire.network import PortRange

_LARGE_MESH = re.compile(r"Mesh should not be bigger than default world size (\d+), .* (\d+) ranks")
_LIGHTNINGS_DEVICES = re.compile(r"You set `devices=.*does not match the world size")


class TorchBackend(Backend):
    """``torch.distributed`` with the ``env://`` rendezvous, as ``torchrun`` would set it up."""

    name = "torch"
    imports = ("torch", "torch.distributed")
    imported_by_trainings = OF_TORCHS_TRAININGS
    store_in_worker = True
    join_call = "torch.distributed.init_process_group()"
    joins = joined.TORCHS_GROUPS
    join_functions = (("torch/distributed/distributed_c10d.py", "init_process_group"),)
    waiting_in = ("/torch/distributed/", "/sparkdl_runner/launch/backends/torch_store.py")
    # DistributedDataParallel waits for its peers inside of backward(), in native code.
    may_wait_in = ("/torch/autograd/graph.py",)
    missing_sentence = (
        "PyTorch is not installed here: run pip install 'sparkdl-runner[torch]' on the driver "
        "and on every executor."
    )

    def environment(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        """See ``Backend.environment``."""
        return {
            **common_environment(world, rendezvous),
            "MASTER_ADDR": rendezvous.address,
            "MASTER_PORT": str(rendezvous.port),
            "GLOO_SOCKET_IFNAME": world.interface,
            torch_store.JOIN_SECONDS: str(join_seconds(rendezvous.attempt.config)),
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

    def listen(self, address: str, port_range: PortRange | None = None) -> Listeners:
        """See ``Backend.listen``."""
        from sparkdl_runner.launch.backends import store_relay

        return store_relay.listen(address, port_range)

    def serve(self, listeners: Listeners, rendezvous: Rendezvous, tell: Tell) -> Release:
        """See ``Backend.serve``; torch's clients can tell no secret."""
        from sparkdl_runner.launch.backends.store_relay import StoreRelay

        store = listeners.private
        if store is None:
            raise ValueError("these listeners were not opened for torch's store")
        relay = StoreRelay(listeners.public, store, rendezvous.peers, num_proc=rendezvous.num_proc)
        relay.start()
        return relay.close

    def advice(self, error: BaseException) -> str:
        """See ``Backend.advice``."""
        return torch_store.advice(error) or _advice_on_division(error)

    def join_in_worker(self, listener: socket.socket | None) -> None:
        """Serves the store in rank 0, where its agent's relay finds it."""
        # A single rank is all there is, as Horovod then takes it to be.
        if int(os.environ["WORLD_SIZE"]) > 1:
            wrong_backend.refuse_horovod(self)
            wrong_backend.refuse_tensorflow(self)
        torch_store.wait_as_long_as_promised()
        torch_store.give_each_group_its_own_keys()
        destroyed_groups.keep_destroyed_groups()
        if listener is not None:
            torch_store.serve(listener)

    def stay_in_worker(self, line: WorkerPipe) -> None:
        """See ``Backend.stay_in_worker``."""
        torch_store.stay(line)


def _advice_on_division(error: BaseException) -> str:
    """Advice on a mesh or a strategy that does not fit these ranks; else ""."""
    # Only torch's own text: to format other objects would run the function's code.
    words = next((argument for argument in error.args if isinstance(argument, str)), "")
    if type(error) is RuntimeError:
        return _advice_on_mesh(words)
    is_of_devices = type(error) is ValueError and _LIGHTNINGS_DEVICES.match(words)
    if is_of_devices or _lacks_device_in_lightning(error):
        return (
            "Give Lightning the ranks that this run has: "
            "devices=int(os.environ['LOCAL_WORLD_SIZE']) "
            f"(ranks of a host, here {os.environ.get('LOCAL_WORLD_SIZE', '?')}) and "
            "num_nodes=int(os.environ['GROUP_WORLD_SIZE']) "
            f"(hosts, here {os.environ.get('GROUP_WORLD_SIZE', '?')}). For devices=1 and "
            "num_nodes=the number of ranks, as with TorchDistributor, run with "
            "RunConfig(node_view='task')."
        )
    if type(error) is not NotImplementedError or "flash_attention_for_cpu" not in words:
        return ""
    return (
        "Context parallel divides attention by kernels that only GPUs have, and this rank computes "
        "on the CPU: run it where each rank has a GPU, or divide the model by tensor parallel."
    )


def _lacks_device_in_lightning(error: BaseException) -> bool:
    """Whether Lightning looked for the device of a local rank beyond its ``devices``."""
    if type(error) is not IndexError or error.__traceback__ is None:
        return False
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return frame.f_code.co_name == "root_device" and "lightning" in package


def _advice_on_mesh(words: str) -> str:
    if found := _LARGE_MESH.match(words):
        ranks, places = found.groups()
        return (
            f"The sizes of the mesh multiply to {places}, and this run has {ranks} ranks: expected "
            f"sizes that multiply to {ranks}. Compute one of them, as dist.get_world_size() // the "
            f"others, or run with num_proc={places}."
        )
    if "needs to contain the local rank" in words:
        return (
            f"Rank {os.environ.get('RANK', '?')} is not in this mesh, which has fewer places than "
            f"this run has ranks ({os.environ.get('WORLD_SIZE', '?')}): expected sizes that "
            "multiply to the number of ranks. Change a size, or num_proc to a multiple of the "
            "sizes that are fixed."
        )
    return ""
