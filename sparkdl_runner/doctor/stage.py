"""What doctor's barrier tasks do: tell what their host is like, and try to reach one another.

The functions travel to executors by value, since nothing of this package may be there; they need
the standard library and pyspark alone, and use what of this package they find.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
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


class Door:
    """Answers whoever knows the token, on one address, with this host's time.

    Used by the driver and by each executor, to be found or not found by the others.

    Args:
        listener: A listening socket; closed by ``close``.
        token: What a visitor says first.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self._listener, self._token = listener, token
        self._closed = False
        self._visits = threading.Semaphore(0)
        listener.settimeout(0.2)
        self._thread = threading.Thread(target=self._serve, name="sparkdl-door", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def wait_for(self, visits: int, seconds: float) -> None:
        """Waits until so many have come, or the time is over."""
        deadline = time.monotonic() + seconds
        for _ in range(visits):
            if not self._visits.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return

    def close(self) -> None:
        """Stops listening."""
        self._closed = True
        self._thread.join(CONNECT_SECONDS + 1)
        self._listener.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                visitor, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with visitor:
                try:
                    visitor.settimeout(1.0)
                    said = visitor.recv(TOKEN_BYTES, socket.MSG_WAITALL)
                    if hmac.compare_digest(said, self._token):
                        visitor.sendall(json.dumps({"time": time.time()}).encode())
                        self._visits.release()
                except OSError:
                    continue


def knock(address: str, port: int, token: bytes) -> dict[str, Any]:
    """Visits a door.

    Returns:
        ``seconds_ahead``: how far this host's clock is ahead of that one's; or ``error``.
    """
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as visit:
            started = time.time()
            visit.sendall(token)
            answer = visit.recv(1000)
            ended = time.time()
        there = json.loads(answer)["time"]
        return {"seconds_ahead": (started + ended) / 2 - there}
    except TimeoutError:
        return {"error": f"no answer within {CONNECT_SECONDS:g} s"}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    except (ValueError, KeyError):
        return {"error": "something else answers there"}


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """What Spark carries to every executor."""

    token: bytes
    driver: tuple[str, int]
    single_host: bool
    driver_prefix: str
    """The prefix of the driver's Python: the same one on the same host needs no second look."""
    script: str
    request: dict[str, Any]

    def __call__(self, _rows: Iterable[Any]) -> Iterator[str]:
        """Runs as one barrier task; yields JSON, for one task of each executor."""
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        places = [info.address for info in context.getTaskInfos()]
        me = context.partitionId()
        answer = _answer(self, context, places, me)
        if places.index(places[me]) == me:
            yield json.dumps(answer)


def _answer(task: HostTask, context: Any, places: list[str], me: int) -> dict[str, Any]:
    """One task's facts; calls ``allGather`` once on several hosts, whatever goes wrong."""
    is_first = places.index(places[me]) == me
    answer: dict[str, Any] = {
        "place": places[me],
        "host": socket.gethostname(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "slots": places.count(places[me]),
    }
    looking = door = None
    if is_first:
        looking = _start_looking(task, answer)
        answer.update(_own_address(task.single_host, places[me].rpartition(":")[0]))
        try:
            family = socket.AF_INET6 if ":" in answer["address"] else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.bind((answer["address"], 0))
            listener.listen(64)
            door = Door(listener, task.token)
        except OSError as error:
            answer["listen_error"] = error.strerror or str(error)
    resources = context.resources().get("gpu")
    told = {
        "place": places[me],
        "address": answer.get("address"),
        "port": door.port if door is not None else None,
        "gpus": list(resources.addresses) if resources is not None else [],
    }
    # Spark's barrier polls once a second; on one host there is nobody to learn of.
    messages = [] if task.single_host else context.allGather(json.dumps(told))
    peers = [json.loads(message) for message in messages]
    if not is_first:
        return {}
    answer["gpus_given"] = [gpu for p in peers if p["place"] == places[me] for gpu in p["gpus"]]
    hosts = [peer for peer in peers if peer["port"]]
    own = next((index for index, peer in enumerate(hosts) if peer["place"] == places[me]), 0)
    # A ring, so that in a large cluster each host is tried by as many as it tries.
    chosen = (hosts[own + 1 :] + hosts[:own])[:MOST_PEERS]
    with ThreadPoolExecutor(MOST_PEERS + 1) as pool:
        to_driver = pool.submit(knock, *task.driver, task.token)
        to_peers = {
            peer["place"]: pool.submit(knock, peer["address"], peer["port"], task.token)
            for peer in chosen
        }
        answer["driver"] = {**to_driver.result(), "to": f"{task.driver[0]}:{task.driver[1]}"}
        answer["peers"] = {place: visit.result() for place, visit in to_peers.items()}
    if door is not None:
        door.wait_for(len(chosen), CONNECT_SECONDS + 1)
        door.close()
    if looking is not None:
        answer["facts"] = _what_it_saw(looking, task)
    return answer


def _start_looking(task: HostTask, answer: dict[str, Any]) -> subprocess.Popen[str] | None:
    """Starts the script that describes this host, unless the driver's says the same."""
    try:
        import sparkdl_runner
        import sparkdl_runner.agent.rank_task  # With all that an agent needs.

        answer["sparkdl_runner"] = sparkdl_runner.__version__
    except Exception as error:
        answer["sparkdl_runner_error"] = f"{type(error).__name__}: {error}"[:300]
    if task.single_host and os.path.realpath(sys.prefix) == os.path.realpath(task.driver_prefix):
        return None
    # Where Spark's own Python looks for modules, so does the script.
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


def _what_it_saw(looking: subprocess.Popen[str], task: HostTask) -> dict[str, Any]:
    request = {**task.request, "marker": task.request["marker"]}
    directories = dict(request["directories"])
    # Where this executor keeps its shuffle files and what is cached.
    for path in (os.environ.get("SPARK_LOCAL_DIRS") or "").split(","):
        if path:
            # Without the folders that Spark makes there for this application.
            base = re.split(r"/(?:spark|blockmgr|executor)-", path)[0] or "/"
            directories[base] = "Spark's local files (spark.local.dir)"
    try:
        output, words = looking.communicate(
            json.dumps({**request, "directories": directories}) + "\n",
            timeout=request["seconds"] + 15,
        )
        return dict(json.loads(output))
    except subprocess.TimeoutExpired:
        os.killpg(looking.pid, signal.SIGKILL)
        return {"error": "looking at this host took too long"}
    except ValueError:
        return {"error": (words.strip().splitlines() or ["no words"])[-1][:300]}


def _own_address(single_host: bool, advertised: str) -> dict[str, Any]:
    """The address that a rank would use here."""
    if single_host:
        return {"address": "127.0.0.1", "interface": "lo"}
    try:
        from sparkdl_runner.wire import network

        address, interface = network.own_address(advertised.strip("[]"))
        return {"address": address, "interface": interface}
    except Exception:  # This package or psutil is missing here, which another finding says.
        return {"address": advertised.strip("[]"), "interface": None}


def new_token() -> bytes:
    """What only this examination's own processes know."""
    return secrets.token_bytes(TOKEN_BYTES)
