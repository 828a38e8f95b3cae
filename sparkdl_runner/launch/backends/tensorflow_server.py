"""A rank's TensorFlow server: started when all ranks are there, and closed to other hosts.

TensorFlow holds Python's lock while it connects to its peers, for as long as one of them is late;
nobody could then tell that rank from one that hangs. So ranks first wait for one another here.

The server listens on all interfaces, which it cannot be told otherwise, and runs whatever is sent
to it. So a packet filter drops what does not come from the run's hosts.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from sparkdl_runner.base.importing import when_imported
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.backends import packet_filter

MEETING = "SPARKDL_RUNNER_TENSORFLOW_MEETING"
"""In a rank's environment: address, port and secret of the store in which the ranks meet."""
PEERS = "SPARKDL_RUNNER_TENSORFLOW_PEERS"
"""In a rank's environment: the addresses of the run's hosts."""

_NO_PROXY = "no_grpc_proxy"
_LOOK_SECONDS = 0.05
_REQUEST_SECONDS = 10.0


def has_peers() -> bool:
    """Whether this rank has others to meet."""
    return int(os.environ["WORLD_SIZE"]) > 1


def prepare() -> None:
    """Makes this process wait for its peers before its server starts, and guard it then."""
    _leave_out_proxies()
    when_imported("tensorflow.python.pywrap_tfe", _change)


def _leave_out_proxies() -> None:
    """Makes gRPC connect to the peers themselves where ``http_proxy`` names a proxy.

    gRPC reads this variable in place of ``no_proxy``.
    """
    own = os.environ.get(_NO_PROXY, os.environ.get("no_proxy", ""))
    hosts = [address.rpartition(":")[0].strip("[]") for address in _place()[0]]
    os.environ[_NO_PROXY] = ",".join([*filter(None, [own]), *dict.fromkeys(hosts)])


def _change(module: Any) -> None:
    start: Callable[..., Any] = module.TFE_EnableCollectiveOps

    def start_when_all_are_there(*arguments: Any) -> Any:
        wait_for_all(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        started = start(*arguments)
        _take_sigterm_back()
        _guard(own_port(), json.loads(os.environ[PEERS]))
        return started

    module.TFE_EnableCollectiveOps = start_when_all_are_there


def _place() -> tuple[list[str], int]:
    """The addresses of all servers by rank, and the own rank."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["cluster"]["worker"], config["task"]["index"]


def own_port() -> int:
    """The port of this rank's server."""
    addresses, rank = _place()
    return int(addresses[rank].rpartition(":")[2])


def _take_sigterm_back() -> None:
    """Undoes what TensorFlow does to SIGTERM: it notes it, for clusters of its makers, and goes on.

    Otherwise ranks would not end on request, but be killed after their grace.
    """
    if threading.current_thread() is threading.main_thread():  # Python allows it no other.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)


def wait_for_all(rank: int, size: int) -> None:
    """Returns once all ranks have come here. The driver names one that is late, and ends us."""
    for method, number in [("PUT", rank), *(("GET", peer) for peer in range(size))]:
        while not _ask(method, number):
            time.sleep(_LOOK_SECONDS)


def _ask(method: str, rank: int) -> bool:
    """Whether the store in rank 0's agent has the key of a rank, or has taken it."""
    address, port, secret = json.loads(os.environ[MEETING])
    connection = http.client.HTTPConnection(address, port, timeout=_REQUEST_SECONDS)
    try:
        connection.request(
            method, f"/{secret}:{port}/tensorflow/{rank}", b"here" if method == "PUT" else None
        )
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False  # It turned us away for now, as where all ranks ask at once.
    finally:
        connection.close()


def _guard(port: int, peers: Iterable[str]) -> None:
    """Closes this process's sockets of a port to all hosts but some."""
    try:
        program = packet_filter.only_from(peers)
        for copy in _sockets_of(port):
            with copy:
                packet_filter.attach(copy, program)
    except OSError as error:  # Not all kernels have filters, or for all users.
        tell(
            "whoever can reach this host can use TensorFlow's server of rank "
            f"{os.environ['RANK']}, port {port}: the kernel takes no filter for it ({error}). Keep "
            "other hosts away from it by a firewall."
        )


def _sockets_of(port: int) -> Iterable[socket.socket]:
    """Copies of this process's TCP sockets that have a local port, listening and connected ones."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
            is_internet = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_internet and copy.getsockname()[1] == port:
                yield copy
            else:
                copy.close()
