"""The doctor's tasks: each describes its host and tries to reach the others.

The functions travel to executors by value, since nothing of this package may be there; they need
the standard library and pyspark alone, and use what of this package they find.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

CONNECT_SECONDS = 3.0
# How many hosts each one tries to reach.
MOST_PEERS = 16
TOKEN_BYTES = 16


class ProbeServer:
    """Answers clients that know the token, on one address, with this host's time.

    The driver and each executor have one, by which the others see whether they reach them.

    Args:
        listener: A listening socket; closed by ``close``.
        token: What a client says first.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self._listener, self._token = listener, token
        self._closed = False
        self._probes = threading.Semaphore(0)
        listener.settimeout(0.2)
        self._thread = threading.Thread(target=self._serve, name="sparkdl-probe", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def wait_for(self, probes: int, seconds: float) -> None:
        """Waits until so many were answered, or the time is over."""
        deadline = time.monotonic() + seconds
        for _ in range(probes):
            if not self._probes.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return

    def close(self) -> None:
        """Stops listening."""
        self._closed = True
        self._thread.join(CONNECT_SECONDS + 1)
        self._listener.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with client:
                try:
                    client.settimeout(1.0)
                    said = client.recv(TOKEN_BYTES, socket.MSG_WAITALL)
                    if hmac.compare_digest(said, self._token):
                        client.sendall(json.dumps({"time": time.time()}).encode())
                        self._probes.release()
                except OSError:
                    continue


def probe(address: str, port: int, token: bytes) -> dict[str, Any]:
    """Asks a ``ProbeServer``.

    Returns:
        ``seconds_ahead``: how far this host's clock is ahead of that one's; or ``error``.
    """
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as server:
            started = time.time()
            server.sendall(token)
            answer = server.recv(1000)
            ended = time.time()
        there = json.loads(answer)["time"]
        return {"seconds_ahead": (started + ended) / 2 - there}
    except TimeoutError:
        return {"error": f"no answer within {CONNECT_SECONDS:g} s"}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    except (ValueError, KeyError):
        return {"error": "something else answers there"}


def meet(address: str, port: int, token: bytes, own: str) -> list[str] | None:
    """Tells a ``Meeting`` of this task, and waits for the others.

    Returns:
        The descriptions of all tasks. If the driver is not reached, the list has this task's alone.
        None if the others have met before.
    """
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as server:
            server.settimeout(None)  # It answers, or its process ends.
            server.sendall(token + own.encode() + b"\n")
            with server.makefile() as lines:
                told: list[str] | None = json.loads(lines.readline())
                return told
    except (OSError, ValueError):
        return [own]


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """The arguments of a host's task, which Spark carries to every executor."""

    token: bytes
    driver: tuple[str, int]
    single_host: bool
    driver_prefix: str
    """The prefix of the driver's Python: the same one on the same host needs no second look."""
    script: str
    request: dict[str, Any]
    meeting_port: int | None = None
    """The driver's port where tasks meet that are no barrier stage."""

    def __call__(self, _rows: Iterable[Any]) -> Iterator[str]:
        """Runs as one task; yields JSON, in a barrier stage for one task of each executor."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        if self.meeting_port is None:
            places = [info.address for info in context.getTaskInfos()]
            place = places[context.partitionId()]
            is_first = places.index(place) == context.partitionId()
        else:  # The parent is Spark's daemon, of which each executor has one.
            place, is_first = f"{_address_towards(*self.driver)}:{os.getppid()}", True
        answer = _answer(self, context, place, is_first=is_first)
        if answer:
            yield json.dumps(answer)

    def gather(self, context: Any, own: str) -> list[str] | None:
        """Returns the descriptions of all tasks; None if this task came after they had met."""
        told: list[str] | None = []
        if self.meeting_port is not None:
            told = meet(self.driver[0], self.meeting_port, self.token, own)
        elif not self.single_host:  # Spark's barrier polls once a second.
            told = context.allGather(own)
        # On one host no network is between them.
        return [] if told and self.single_host else told


@dataclass(frozen=True)
class HostRows:
    """A host's task as ``mapInArrow`` runs it, in a barrier stage: its answer is a row."""

    task: HostTask

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Spark calls this."""
        import pyarrow as pa

        for _ in batches:  # Spark drops a Python process that has not read all of its input.
            pass
        for answer in self.task(()):
            yield pa.RecordBatch.from_arrays([pa.array([answer])], ["answer"])


def _answer(task: HostTask, context: Any, place: str, *, is_first: bool) -> dict[str, Any]:
    """One task's facts; calls ``allGather`` once on several hosts, whatever goes wrong."""
    answer: dict[str, Any] = {
        "place": place,
        "host": socket.gethostname(),
        "executable": sys.executable,
    }
    description = server = None
    if is_first:
        description = _start_description(task, answer)
        answer.update(_own_address(task.single_host, place.rpartition(":")[0]))
        try:
            family = socket.AF_INET6 if ":" in answer["address"] else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.bind((answer["address"], 0))
            listener.listen(64)
            server = ProbeServer(listener, task.token)
        except OSError as error:
            answer["listen_error"] = error.strerror or str(error)
    resources = context.resources().get("gpu")
    own = {
        "place": place,
        "address": answer.get("address"),
        "port": server.port if server is not None else None,
        "gpus": list(resources.addresses) if resources is not None else [],
    }
    messages = task.gather(context, json.dumps(own))
    if messages is None:
        if server is not None:
            server.close()
        if description is not None:
            os.killpg(description.pid, signal.SIGKILL)
            description.communicate()
    if messages is None or not is_first:
        return {}
    tasks = [json.loads(message) for message in messages]
    answer["gpus_given"] = [gpu for t in tasks if t["place"] == place for gpu in t["gpus"]]
    answer.update(_probes(task, _peers(tasks, place)))
    if server is not None:
        server.wait_for(len(answer["peers"]), CONNECT_SECONDS + 1)
        server.close()
    if description is not None:
        answer["facts"] = _described(description, task)
    return answer


def _peers(tasks: list[dict[str, Any]], place: str) -> list[dict[str, Any]]:
    """The executors that this one probes: those that follow it in a ring, as many as probe it."""
    servers = [server for server in tasks if server["port"]]
    own = next((index for index, server in enumerate(servers) if server["place"] == place), 0)
    return (servers[own + 1 :] + servers[:own])[:MOST_PEERS]


def _probes(task: HostTask, peers: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of probing the driver and the peers."""
    with ThreadPoolExecutor(MOST_PEERS + 1) as pool:
        to_driver = pool.submit(probe, *task.driver, task.token)
        to_peers = {
            f"{peer['address']} ({peer['place']})": pool.submit(
                probe, peer["address"], peer["port"], task.token
            )
            for peer in peers
        }
        return {
            "driver": {**to_driver.result(), "to": f"{task.driver[0]}:{task.driver[1]}"},
            "peers": {peer: future.result() for peer, future in to_peers.items()},
        }


def _start_description(task: HostTask, answer: dict[str, Any]) -> subprocess.Popen[str] | None:
    """Starts the script that describes this host, unless the driver's says the same."""
    try:
        import sparkdl_runner
        import sparkdl_runner.launch.agent.rank_task  # With all that an agent needs.

        answer["sparkdl_runner"] = sparkdl_runner.__version__
    except Exception as error:
        answer["sparkdl_runner_error"] = f"{type(error).__name__}: {error}"[:300]
    if task.single_host and os.path.realpath(sys.prefix) == os.path.realpath(task.driver_prefix):
        return None
    # The script finds modules where Spark's own Python does.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", task.script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # It ends its own group when it is done.
    )


def _described(script: subprocess.Popen[str], task: HostTask) -> dict[str, Any]:
    """The answer of the script for this host."""
    directories = {}
    # Where this executor keeps its shuffle files and what is cached.
    for path in (os.environ.get("SPARK_LOCAL_DIRS") or "").split(","):
        if path:
            # Without the folders that Spark makes there for this application.
            base = re.split(r"/(?:spark|blockmgr|executor)-", path)[0] or "/"
            directories[base] = "Spark's local files (spark.local.dir)"
    try:
        output, errors = script.communicate(
            json.dumps({**task.request, "directories": directories}) + "\n",
            timeout=task.request["seconds"] + 15,
        )
        return dict(json.loads(output))
    except subprocess.TimeoutExpired:
        os.killpg(script.pid, signal.SIGKILL)
        return {"error": "looking at this host took too long"}
    except ValueError:
        return {"error": (errors.strip().splitlines() or ["it wrote nothing"])[-1][:300]}


def _address_towards(host: str, port: int) -> str:
    """The address by which this host would reach another; no packet is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probing:
            probing.connect(address)
            return str(probing.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _own_address(single_host: bool, advertised: str) -> dict[str, Any]:
    """The address that a rank would use here."""
    if single_host:
        return {"address": "127.0.0.1", "interface": "lo"}
    try:
        from sparkdl_runner.launch.wire import network

        address, interface = network.own_address(advertised.strip("[]"))
        return {"address": address, "interface": interface}
    except Exception:  # This package or psutil is missing here, which another finding says.
        return {"address": advertised.strip("[]"), "interface": None}
