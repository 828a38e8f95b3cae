"""Several faults at once over two hosts, as ``make mixed-faults`` injects many."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import namespaces

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "mixed_faults", "--count", "1", "--backends", "horovod"]
PLACES = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "jobs")))

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


def inject(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PLACES, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_fault_over_two_hosts_is_told_rightly_and_leaves_nothing(tmp_path: Path) -> None:
    # This seed draws the death of a rank alone.
    with inject(tmp_path, "--seed", "1") as campaign:
        said = campaign.communicate()[0]
    assert campaign.returncode == 0, said
    assert "kill of rank 1: right after" in said
    assert said.endswith("1 runs, 0 of them wrong\n")


def test_a_campaign_that_is_asked_to_end_takes_its_hosts_along(tmp_path: Path) -> None:
    with inject(tmp_path) as campaign:
        try:
            deadline = time.monotonic() + 300
            while not (hosts := hosts_of(campaign)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert hosts
            campaign.terminate()
            assert campaign.wait(300) == 143
        finally:
            campaign.kill()
    assert hosts_of(campaign) == set()


def hosts_of(campaign: subprocess.Popen[str]) -> set[str]:
    """The network namespaces that a campaign has made."""
    name = f"sdf{campaign.pid % 200 + 20}h"
    listed = namespaces.ip("netns", "list").splitlines()
    return {line.split()[0] for line in listed if line.startswith(name)}
