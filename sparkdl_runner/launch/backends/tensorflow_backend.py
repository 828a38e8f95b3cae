"""TensorFlow as a backend: ``TF_CONFIG``, from which ``MultiWorkerMirroredStrategy`` learns."""

from __future__ import annotations

import json
import re
import socket

from sparkdl_runner.launch.backends import (
    Backend,
    Rendezvous,
    joined,
    tensorflow_server,
    wrong_backend,
)
from sparkdl_runner.launch.backends.environment import common_environment
from sparkdl_runner.rank.world import World

# Words of TensorFlow 2.21 in other errors about a lost peer.
_LOST_PEER = re.compile(
    r"Collective ops is aborted by|Error reported from /job:|stopped sending heartbeats"
    r"|coordination service|Socket closed|Connection reset by peer"
)
_MAY_SAY_SO = {
    "AbortedError",
    "CancelledError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "UnknownError",
}


class TensorflowBackend(Backend):
    """TensorFlow's own collectives over gRPC: each rank has a server, and rank 0's leads them."""

    name = "tensorflow"
    imports = ("tensorflow",)
    store_in_worker = False
    join_call = "tf.distribute.MultiWorkerMirroredStrategy()"
    joins = joined.TENSORFLOWS_STRATEGY
    join_functions = (("/sparkdl_runner/launch/backends/tensorflow_server.py", "wait_for_all"),)
    waiting_in = ("/sparkdl_runner/launch/backends/tensorflow_server.py",)
    # An operation computes, or waits for its peers, in native code below these.
    may_wait_in = ("/tensorflow/python/eager/", "/tensorflow/python/ops/gen_collective_ops.py")
    missing_sentence = (
        "TensorFlow is not installed here: run pip install tensorflow (or tensorflow-cpu) on the "
        "driver and on every executor."
    )

    def environment(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        """See ``Backend.environment``."""
        task = {"type": "worker", "index": world.rank}
        return {
            **common_environment(world, rendezvous),
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": list(rendezvous.servers)}, "task": task}
            ),
            # The agent holds the port that the server is to have; see hold_port.
            "TF_GRPC_REUSE_PORT": "true",
            tensorflow_server.MEETING: json.dumps(
                [rendezvous.address, rendezvous.port, rendezvous.secret]
            ),
            tensorflow_server.PEERS: json.dumps(sorted(rendezvous.peers)),
        }

    def is_communication_error(self, error: BaseException) -> bool:
        """See ``Backend.is_communication_error``."""
        kind = type(error)
        if not kind.__module__.startswith("tensorflow."):
            return False
        if kind.__name__ == "UnavailableError":
            return True
        return kind.__name__ in _MAY_SAY_SO and _LOST_PEER.search(str(error)) is not None

    def advice(self, error: BaseException) -> str:
        """See ``Backend.advice``."""
        return _advice_on_keras(error) or wrong_backend.advice_on_torch(error, self)

    def hold_port(self) -> socket.socket | None:
        """See ``Backend.hold_port``.

        The server binds its port by number, on all interfaces. So this socket has the port there,
        without listening: the kernel then gives it to nobody else but to a process of the same user
        that asks for SO_REUSEPORT, as the server does.
        """
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("", 0))
        except BaseException:
            held.close()
            raise
        return held

    def join_in_worker(self, listener: socket.socket | None) -> None:
        """Prepares for the server that TensorFlow starts when user code makes its strategy."""
        if tensorflow_server.has_peers():
            wrong_backend.refuse_horovod(self)
            tensorflow_server.prepare()


def _advice_on_keras(error: BaseException) -> str:
    """Advice that Keras 3's own error does not give; else ""."""
    # Only TensorFlow's own text: to format other objects would run the function's code.
    is_known = type(error) is ValueError and any(
        isinstance(argument, str) and "tensorflow.python.distribute.values.PerReplica" in argument
        for argument in error.args
    )
    if not is_known:
        return ""
    return (
        "The fit() of Keras 3 does not work with MultiWorkerMirroredStrategy. Take Keras 2 "
        "(pip install tf_keras; import tf_keras as keras), or write the loop yourself."
    )
