"""How much memory a loader takes, seen from outside, on a data set ten times its budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BUDGET_BYTES = 48 << 20

# The base is what the process has before: torch, Arrow and a loader of a few rows.
_MEASURE = """
import json, sys
from pathlib import Path
sys.path.insert(0, {unit!r})
from parquet_sets import LOCAL, load, numbered, one
from sparkdl_runner.data.dataset.manifest import Manifest

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

here = Path({directory!r})
few = one(here / "few", numbered(100, width=64), 10)
with load(here / "few", few, batch_size=10) as loader:
    list(loader)
Path("/proc/self/clear_refs").write_text("5")  # begins a new VmHWM
before = kilobytes("VmRSS:")
manifest = Manifest.read(LOCAL, str(here / "many"))
arguments = dict(batch_size=256, memory_budget_bytes={budget}, window_row_groups=2)
with load(here / "many", manifest, **arguments) as loader:
    rows = sum(len(batch["id"]) for batch in loader)
print(json.dumps([rows, (kilobytes("VmHWM:") - before) * 1024]))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set whose rows take ten times the budget, in row groups of a megabyte."""
    path = tmp_path_factory.mktemp("memory")
    unit = str(Path(__file__).parents[2] / "unit" / "data")
    code = (
        f"import sys; sys.path.insert(0, {unit!r})\n"
        "from pathlib import Path\n"
        "from parquet_sets import numbered, write_groups\n"
        f"write_groups(Path({str(path)!r}) / 'many', numbered(480 * 3900, width=64),"
        " [[3900] * 48] * 10)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # its memory is not ours
    return path


def test_peak_memory_is_within_the_budget(directory: Path) -> None:
    unit = str(Path(__file__).parents[2] / "unit" / "data")
    code = _MEASURE.format(unit=unit, directory=str(directory), budget=BUDGET_BYTES)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    rows, peak_bytes = json.loads(done.stdout)
    assert rows * (64 * 4 + 4 + 8) > 9.9 * BUDGET_BYTES
    assert peak_bytes < 1.3 * BUDGET_BYTES


_FIFTY_EPOCHS = """
import gc, json, sys
from pathlib import Path
sys.path.insert(0, {unit!r})
from parquet_sets import load, numbered, one

def rss_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

here = Path({directory!r})
manifest = one(here, numbered(20_000, width=64), 1_000)
with load(
    here, manifest, batch_size=256, num_epochs=None, memory_budget_bytes=32_000_000
) as loader:
    batches = iter(loader)
    seen = []
    for epochs in (10, 50):
        for _ in range(epochs * loader.steps_per_epoch):
            next(batches)
        gc.collect()
        seen.append(rss_bytes())
    batches.close()
print(json.dumps(seen))
"""


def test_memory_is_flat_over_50_epochs(tmp_path: Path) -> None:
    unit = str(Path(__file__).parents[2] / "unit" / "data")
    code = _FIFTY_EPOCHS.format(unit=unit, directory=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    before, after = json.loads(done.stdout)
    assert after - before < 5_000_000
