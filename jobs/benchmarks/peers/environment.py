"""The environment of the peers that no lane has: Ray, and loaders of other formats."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.ranks.processes import JOBS

COMMAND = "python jobs/benchmark.py peers"
_PINS = JOBS.parent / "conf" / "constraints-peers.txt"
_PEERS = ("ray[train]", "litdata", "datasets", "torchdata", "torch", "pillow", "psutil")
_FOR_MOSAIC = "boto3 brotli catalogue numpy python-snappy torchvision tqdm transformers xxhash zstd"
# It asks for an older transformers, and for clients of storages that are not measured.
_INSTALLS = ((*_PEERS, *_FOR_MOSAIC.split()), ("--no-deps", "mosaicml-streaming"))


def peers_python() -> str:
    """The environment's Python.

    Raises:
        FileNotFoundError: It has not been made, for these pins and this version of Python.
    """
    if not (_folder() / "done").exists():
        raise FileNotFoundError(f"its environment is not made; run {COMMAND}")
    return str(_folder() / "bin" / "python")


def make_environment() -> None:
    """Makes it, unless it is there: some minutes, and 1.5 GB.

    Raises:
        subprocess.CalledProcessError: pip failed, and said why.
    """
    folder = _folder()
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for packages in _INSTALLS:
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*install, "--constraint", str(_PINS), *packages], check=True)
        (folder / "done").touch()
    print(f"The peers' environment is in {folder}")


def peers_versions() -> dict[str, str]:
    """The versions of the peers there; none if it is not made."""
    packages = [str(one) for one in _folder().glob("lib/python*/site-packages")]
    found = {one.metadata["Name"]: one.version for one in metadata.distributions(path=packages)}
    names = (*(one.partition("[")[0] for one in _PEERS), "mosaicml-streaming", "pyarrow", "numpy")
    return {f"{name} of the peers": found[name] for name in names if name in found}


def _folder() -> Path:
    """Another one for each set of pins, of packages and each version of Python."""
    key = hashlib.sha256(f"{sys.version} {_INSTALLS}".encode() + _PINS.read_bytes()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sparkdl-runner" / "benchmark-peers" / key[:16]
