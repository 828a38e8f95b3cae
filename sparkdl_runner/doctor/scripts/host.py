"""Tells what this host and this Python are like: one line of JSON for the line it is asked.

Started by the Python that it describes. It loads no library itself: what may crash or hang is
loaded by processes of its own, side by side, each with a time limit.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import queue
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

PACKAGES = (
    *("torch", "horovod", "tensorflow", "petastorm", "pyarrow", "numpy", "mlflow", "mlflow-skinny"),
)
WRITTEN_BYTES = 1 << 16
GPU_FIELDS = "index,uuid,name,driver_version"


def run(command: list[str], seconds: float) -> tuple[int | None, str, str]:
    """Runs a program. Returns its exit code (None if it took too long), output and errors."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        return 126, "", f"{command[0]} cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace"), ""
    return done.returncode, done.stdout, done.stderr


def run_script(source: str, arguments: list[str], seconds: float) -> dict[str, Any]:
    """Runs one of the other scripts. Returns its answers by name, and ``end`` if it ended badly."""
    code, output, errors = run([sys.executable, "-c", source, *arguments], seconds)
    answers: dict[str, Any] = {}
    # splitlines would also split at the mark.
    for line in output.split("\n"):
        _, mark, answer = line.partition("\x1e")
        if mark:
            answers.update(json.loads(answer))
    if code is None:
        answers["end"] = f"it did not finish within {seconds:g} s"
    elif code < 0:
        answers["end"] = f"it died of {signal.Signals(-code).name}"
    elif code > 0:
        last = errors.strip().splitlines()[-1:] or ["it wrote nothing"]
        answers["end"] = f"it ended with exit code {code}: {last[0][:300]}"
    return answers


def packages() -> dict[str, str]:
    """The versions of what is installed, by the packages' own records."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    # Of one that a cluster brings by itself there is no record.
    with contextlib.suppress(Exception):
        if "horovod" not in versions and importlib.util.find_spec("horovod") is not None:
            versions["horovod"] = "unknown"
    return versions


def needed_by_spark() -> dict[str, str]:
    """The least versions that this pyspark asks for, by name."""
    versions = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("pyspark") or ():
            match = re.match(r"(pyarrow|pandas|numpy)\b[^;]*>=\s*([\d.]+)", line)
            if match:
                versions[match[1]] = match[2]
    return versions


def horovod_record() -> dict[str, Any]:
    """The torch that Horovod was built for, and its wheel, without loading it."""
    record = {}
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("horovod")
        folder = os.path.dirname((spec and spec.origin) or "")
        with open(os.path.join(folder, "metadata.json")) as stream:
            record["torch"] = json.load(stream).get("pytorch")
    with contextlib.suppress(Exception):
        text = importlib.metadata.distribution("horovod").read_text("direct_url.json")
        url = urllib.parse.unquote(json.loads(text or "{}")["url"])
        # The name of a wheelhouse's folder says what a wheel was built for. The rest is private.
        record["wheel_folder"] = os.path.basename(os.path.dirname(urllib.parse.urlsplit(url).path))
    return record


def gpus(seconds: float) -> dict[str, Any]:
    """The GPUs that NVIDIA's tool lists, or why there are none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"gpus": []}
    code, output, errors = run(
        [tool, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader"], seconds
    )
    if code is None:
        return {"gpus": [], "error": f"nvidia-smi did not answer within {seconds} s"}
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    listed = [dict(zip(GPU_FIELDS.split(","), row)) for row in rows if len(row) == 4]  # noqa: B905
    answer: dict[str, Any] = {"gpus": listed}
    if code != 0 or not listed:
        answer["error"] = (output + errors).strip()[:300] or f"nvidia-smi ended with {code}"
    return answer


def directory(path: str) -> dict[str, Any]:
    """The space in a directory, and whether a file can be written there."""
    answer: dict[str, Any] = {}
    existing = path
    while not os.path.isdir(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    try:
        space = os.statvfs(existing)
        answer["free_bytes"] = space.f_bavail * space.f_frsize
        answer["free_inodes"] = space.f_favail if space.f_files else None
        with tempfile.TemporaryFile(dir=existing) as stream:
            stream.write(b"0" * WRITTEN_BYTES)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        answer["error"] = f"{type(error).__name__}: {error.strerror or error}"
    return answer


def directories(purposes: dict[str, str]) -> dict[str, Any]:
    """The same of several, by path, and of the one for temporary files."""
    wanted = dict(purposes)
    # If no directory can be written, there is no default either.
    with contextlib.suppress(OSError):
        wanted[tempfile.gettempdir()] = "temporary files"
    return {path: {"purpose": purpose, **directory(path)} for path, purpose in wanted.items()}


def memory() -> dict[str, Any]:
    """Free memory in bytes, and the limit of the container, if there is one."""
    answer: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/meminfo") as stream:
            match = re.search(r"MemAvailable:\s*(\d+)", stream.read())
        answer["available_bytes"] = int(match[1]) * 1024 if match else None
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            with open(f"{folder}/{limit}") as first, open(f"{folder}/{used}") as second:
                most, now = int(first.read()), int(second.read())
            if most < 1 << 60:
                answer.update(limit_bytes=most, used_bytes=now)
                break
    return answer


def name() -> dict[str, str]:
    """The host's name, and the address to which it leads here."""
    own = socket.gethostname()
    try:
        return {"name": own, "leads_to": socket.gethostbyname(own)}
    except OSError as error:
        return {"name": own, "error": str(error)}


def folder(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """Whether a file can be written in a folder, and whether the driver's is there."""
    own = f"{request['marker']}-{socket.gethostname()}-{os.getpid()}"
    asked = json.dumps({"url": url, "name": own, "look_for": request["marker"]})
    command = [sys.executable, "-c", request["scripts"]["folder"], asked]
    _, output, _ = run(command, request["seconds"])
    # Anything before it was printed by a library.
    line = next((line for line in output.splitlines() if line.startswith("{")), None)
    return (
        json.loads(line) if line else {"error": f"no answer came within {request['seconds']:g} s"}
    )


class Staying(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, before which all of an answer would be read."""

    def http_error_302(self, *_: Any, **__: Any) -> Any:
        """Leaves the answer as it is."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def server(url: str, seconds: float) -> str | None:
    """Why a web server cannot be reached from here, or None."""
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    # A socket's own limit begins anew with each byte, and looking up a name has none.
    threading.Thread(target=lambda: answers.put(asked(url, seconds)), daemon=True).start()
    try:
        return answers.get(timeout=seconds + 1)
    except queue.Empty:
        return f"no complete HTTP header came within {seconds:g} s"


def asked(url: str, seconds: float) -> str | None:
    """As ``server``, but with no limit on the whole time."""
    try:
        urllib.request.build_opener(Staying).open(url, timeout=seconds).close()
        return None
    except urllib.error.HTTPError:
        return None  # It is there; what it thinks of us, the driver asks.
    except Exception as error:
        reason = getattr(error, "reason", error)
        # The server answers; whether to trust its certificate is MLflow's decision.
        return None if isinstance(reason, ssl.SSLCertVerificationError) else str(reason)[:300]


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """All facts."""
    scripts, seconds = request["scripts"], request["seconds"]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        tried = {url: pool.submit(folder, url, request) for url in request["folders"]}
        native = request["native"] and pool.submit(
            run_script, scripts["native"], request["native"], seconds
        )
        installed = packages()
        readers = "petastorm" in installed and pool.submit(
            run_script, scripts["native"], ["petastorm"], seconds
        )
        smi = pool.submit(gpus, min(seconds, 10))
        servers = {url: pool.submit(server, url, 4) for url in request["servers"]}
        return {
            "system": platform.system(),
            "python": platform.python_version(),
            "executable": sys.executable,
            "packages": installed,
            "needed_by_spark": needed_by_spark(),
            "horovod_record": horovod_record(),
            "name": name(),
            "directories": directories(request["directories"]),
            "shared_memory": directory("/dev/shm") if os.path.isdir("/dev/shm") else None,  # noqa: S108
            "memory": memory(),
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "servers": {url: answer.result() for url, answer in servers.items()},
            "folders": {url: answer.result() for url, answer in tried.items()},
            "gpus": smi.result(),
            "native": native.result() if native else {},
            "petastorm": readers.result() if readers else None,
        }


def main() -> None:
    """Answers."""
    request = json.loads(sys.stdin.readline())
    try:
        answer = describe(request)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
    # What loaded libraries have started, and did not end.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
