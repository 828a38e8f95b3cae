"""Which tests are run, and how their own launcher starts them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
NUM_PROC = 2


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One file of tests.

    Attributes:
        name: What it is called on the command line.
        backend: The backend whose ranks run it.
        file: The file, for pytest.
        launcher: The command of its own launcher, up to Python's arguments.
    """

    name: str
    backend: str
    file: Path
    launcher: tuple[str, ...]


def suites() -> list[Suite]:
    """All suites that can be run here.

    Those of Horovod are in no wheel: ``HOROVOD_SOURCE`` names an unpacked source of 0.28.1.
    """
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    found = [
        Suite(
            name="torch",
            backend="torch",
            file=HERE / "torch_distributed.py",
            launcher=(*torchrun, f"--nproc-per-node={NUM_PROC}"),
        )
    ]
    horovodrun = (sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(NUM_PROC))
    source = os.environ.get("HOROVOD_SOURCE", "")
    found += [
        Suite(
            name=f"horovod-{name}",
            backend="horovod",
            file=Path(source, "test", "parallel", f"test_{name}.py").absolute(),
            launcher=(*horovodrun, sys.executable),
        )
        for name in ("torch", "process_sets_static", "timeline")
        if source
    ]
    return found
