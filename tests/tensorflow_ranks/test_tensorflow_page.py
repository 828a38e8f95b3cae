"""The documentation's page on TensorFlow does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from docs_blocks import ROOT, blocks_of


@pytest.mark.integration
def test_its_blocks_run_and_print_what_is_shown(tmp_path):
    code, shown = (block for block in blocks_of(ROOT / "docs" / "tensorflow.md") if block.kind)
    assert (code.kind, shown.kind) == ("python tensorflow", "text")
    assert len(code.text.splitlines()) <= 40
    (tmp_path / "page.py").write_text(code.text)
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for line in shown.text.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        assert re.search(f"^{pattern}$", done.stdout, flags=re.MULTILINE), done.stdout[-2000:]
