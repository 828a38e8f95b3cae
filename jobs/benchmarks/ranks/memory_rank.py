"""One rank of the memory benchmark: reads an epoch, and prints what that took at most.

It is a process of its own. Its only argument says as JSON what to read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def _status(name: str) -> int:
    """Bytes of an entry of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def _measure(
    directory: str,
    budget: int | None,
    arguments: dict[str, Any],
    s3: dict[str, Any] | None = None,
) -> None:
    import pandas  # noqa: F401  A training has imported it, through MLflow.
    import pyarrow.fs
    import pyarrow.parquet
    import torch
    from PIL import Image

    from sparkdl_runner.data.batches.loader import ArrowLoader
    from sparkdl_runner.data.dataset.manifest import Manifest

    Image.preinit()
    torch.set_num_threads(1)
    filesystem = pyarrow.fs.S3FileSystem(**s3) if s3 else pyarrow.fs.LocalFileSystem()
    manifest = Manifest.read(filesystem, directory)
    Path("/proc/self/clear_refs").write_text("5")  # The peak so far counts no more.
    base = _status("VmRSS")
    began, steps = time.perf_counter(), 0
    with ArrowLoader(
        manifest, filesystem, directory, memory_budget_bytes=budget, tail="uneven", **arguments
    ) as loader:
        for _ in loader:
            steps += 1
    answer = {
        "base_bytes": base,
        "reading_bytes": _status("VmHWM") - base,
        "steps": steps,
        "seconds": time.perf_counter() - began,
    }
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _measure(**json.loads(sys.argv[1]))
