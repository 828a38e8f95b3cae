"""Horovod as a backend."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING

from sparkdl_runner.launch.backends import (
    OF_TORCHS_TRAININGS,
    Backend,
    Release,
    Rendezvous,
    horovod_elastic,
    joined,
    wrong_backend,
)
from sparkdl_runner.launch.backends.environment import common_environment, join_seconds
from sparkdl_runner.rank.world import World

if TYPE_CHECKING:
    from sparkdl_runner.launch.backends.listeners import Listeners

# Horovod raises the same for an operation that it refuses and for the loss of a peer. These are the
# refusals in ``controller.cc``, ``operation_manager.cc`` and ``common.h`` of 0.28.1.
_REFUSALS = re.compile(
    r"^(Mismatched |No \w+ operation enabled|Rank zero tried to "
    r"|\w+ is not supported (with Join|yet))|with the same name as another tensor"
)


class HorovodBackend(Backend):
    """Horovod over gloo, with NCCL for GPU tensors where the wheel was built for it.

    The variables are those that Horovod 0.28.1's ``gloo_context.cc`` reads.
    """

    name = "horovod"
    imports = ("torch", "horovod.torch")
    imported_by_trainings = OF_TORCHS_TRAININGS
    store_in_worker = False
    copies_store = True
    join_call = "hvd.init()"
    joins = joined.HOROVODS_INIT
    join_functions = (("horovod/common/basics.py", "init"),)
    waiting_in = ("/horovod/",)
    raised_by_all = ("Mismatched ",)
    missing_sentence = (
        "Horovod is not installed here: run sparkdl-runner build-horovod, which builds Horovod "
        "0.28.1 for the installed torch and installs it (on Databricks, make conf/horovod/build.sh "
        "the cluster's init script); or use the torch backend, "
        'DistributedRunner(backend="torch"), which needs none.'
    )

    def environment(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        """See ``Backend.environment``."""
        config = rendezvous.attempt.config
        return {
            **common_environment(world, rendezvous),
            **({horovod_elastic.PLACE: url} if (url := config.elastic_state_url) else {}),
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
            **_place_of_store(world, rendezvous),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(join_seconds(config)),
        }

    def is_communication_error(self, error: BaseException) -> bool:
        """See ``Backend.is_communication_error``."""
        return type(error).__name__ == "HorovodInternalError" and not _is_refusal(error)

    def advice(self, error: BaseException) -> str:
        """See ``Backend.advice``."""
        return _advice_on_adasum(error) or wrong_backend.advice_on_torch(error, self)

    def serve_copy(self, listeners: Listeners, rendezvous: Rendezvous) -> Release:
        """See ``Backend.serve_copy``."""
        from sparkdl_runner.launch.backends.rendezvous.cache import serve

        return serve(listeners, rendezvous)

    def join_in_worker(self, listener: socket.socket | None) -> None:
        """See ``Backend.join_in_worker``."""
        horovod_elastic.take_over()
        if int(os.environ["WORLD_SIZE"]) > 1:
            wrong_backend.refuse_tensorflow(self)


def _place_of_store(world: World, rendezvous: Rendezvous) -> dict[str, str]:
    """The address of the store for a rank: on its own host, if there is a copy."""
    address, port = rendezvous.address, rendezvous.port
    if rendezvous.copy_port:
        address, port = world.address, rendezvous.copy_port
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address_for_ranks(address, port, rendezvous.secret),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def address_for_ranks(address: str, port: int, secret: str) -> str:
    """What Horovod's client takes for the host's address, so that all its paths hold the secret."""
    return f"{address}:{port}/{secret}"


def _is_refusal(error: BaseException) -> bool:
    return _REFUSALS.search(_text(error)) is not None


def _advice_on_adasum(error: BaseException) -> str:
    """Advice that Horovod's own error does not give; else ""."""
    if "No Adasum operation enabled" not in _text(error):
        return ""
    return (
        "Adasum is in builds of Horovod with MPI only, and ranks here meet over gloo, for which it "
        "has none. Take op=hvd.Average, and multiply the learning rate by hvd.size(), after some "
        "epochs in which it grows to that."
    )


def _text(error: BaseException) -> str:
    """A text of Horovod's own: to show anything else would run what the function's objects do."""
    for argument in error.args:
        if type(argument) is RuntimeError:  # HorovodInternalError holds what it was raised from.
            argument = argument.args[0] if argument.args else ""
        if isinstance(argument, str):
            return argument
    return ""
