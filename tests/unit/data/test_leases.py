"""A lease says that a process of another machine still uses a folder."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from parquet_sets import LOCAL
from test_leftovers import made

from one_module import replace_in
from sparkdl_runner.data import sweep_leftovers
from sparkdl_runner.data.dataset import lease
from sparkdl_runner.data.dataset.lease import FOLDER, HeldLease, leases_of


@pytest.fixture(autouse=True)
def _not_renewed_by_a_thread(monkeypatch: Any) -> None:
    monkeypatch.setattr(lease, "_keep_renewing", lambda held: None)


def end_leases(folder: Path) -> None:
    for path in (folder / FOLDER).iterdir():
        ended = {**json.loads(path.read_text()), "ends_unix_seconds": time.time() - 1}
        path.write_text(json.dumps(ended))


def test_leftovers_of_another_machine_go_with_their_lease(tmp_path: Path) -> None:
    ended, running, unknown = (made(tmp_path, hostname="another-host") for _ in range(3))
    for path in (ended, running):
        HeldLease(f"file://{path}")
    end_leases(ended)
    assert [Path(url).name for url in sweep_leftovers(f"file://{tmp_path}")] == [ended.name]
    assert running.exists()
    assert unknown.exists()


def test_a_lease_is_renewed_long_before_it_ends(tmp_path: Path, monkeypatch: Any) -> None:
    held = HeldLease(f"file://{tmp_path}")
    [before] = leases_of(LOCAL, str(tmp_path))
    held.renew_if_due()
    assert leases_of(LOCAL, str(tmp_path)) == [before]
    held._next = 0.0  # A quarter of its time has passed.
    replace_in(monkeypatch, lease, "time", time=lambda: before.ends_unix_seconds)
    held.renew_if_due()
    [after] = leases_of(LOCAL, str(tmp_path))
    assert after.ends_unix_seconds > before.ends_unix_seconds


def test_a_torn_lease_counts_for_a_day(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a.json").write_text('{"user"')
    [found] = leases_of(LOCAL, str(tmp_path))
    assert not found.is_over
    os.utime(tmp_path / FOLDER / "a.json", (0, 0))
    assert [one.is_over for one in leases_of(LOCAL, str(tmp_path))] == [True]
    assert set(asdict(found)) == {"user", "hostname", "pid", "ends_unix_seconds"}
