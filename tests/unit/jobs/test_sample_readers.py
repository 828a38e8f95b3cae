"""The ways to read samples that the benchmarks compare: what is on their clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from benchmarks.ranks.processes import module_environment
from benchmarks.tables.jpegs import jpegs
from benchmarks.tables.loader_tables import write_files

# A worker is forked from the process: both look for each module that they have not imported.
ON_THE_CLOCK = """
import json, os, sys
from benchmarks.peers import sample_readers

class Finder:
    def find_spec(self, name, path=None, target=None):
        os.write(1, f"{name}\\n".encode())

request = json.loads(sys.argv[1])
stages = getattr(sample_readers, request["work"])(request)
next(stages)
sys.meta_path.insert(0, Finder())
counts = [sum(stage) for stage in stages]
assert counts == [0, 4, 4], counts
"""


@pytest.mark.parametrize("work", ["_ours", "_files"])
def test_what_decodes_images_is_imported_before_the_clock_starts(tmp_path: Path, work: str) -> None:
    source, into = tmp_path / "files", tmp_path / "table"
    source.mkdir()
    for number, jpeg in enumerate(jpegs(50, 50, 4)):
        (source / f"{number:06}.jpg").write_bytes(jpeg)
    images = [path.read_bytes() for path in sorted(source.iterdir())]
    write_files([(pa.table({"image": images}), 1)], into)
    arguments = {"batch_size": 2, "images": {"image": [8, 8]}}
    request = {"work": work, "rows": 4, "size": 8, "batch_size": 2, "workers": 1, "epochs": 2}
    request |= {"url": str(into if work == "_ours" else source), "arguments": arguments}
    done = subprocess.run(
        [sys.executable, "-c", ON_THE_CLOCK, json.dumps(request)],
        env=module_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not [name for name in done.stdout.split() if name.startswith(("PIL", "pandas"))]
