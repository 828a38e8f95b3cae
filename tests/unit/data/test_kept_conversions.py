"""A kept conversion is found by its key, stays while it has a lease, and is nobody else's file."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from parquet_sets import LOCAL, numbered, one
from test_leftovers import made

from sparkdl_runner.cli import main
from sparkdl_runner.data import sweep_leftovers
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.place import CachePlace
from sparkdl_runner.data.keep import kept
from sparkdl_runner.data.keep.kept import Used, find_or_make, list_kept, sweep_kept
from sparkdl_runner.data.keep.lease import FOLDER, HeldLease, Lease

KEY, OTHER_KEY = "a" * 64, "b" * 64
HOUR = 3600.0


class Cache:
    """A cache directory, and how often something was converted into it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url, self.conversions = folder, f"file://{folder}", 0

    def get(self, key: str = KEY, seconds: float = HOUR, **changes: Any) -> Used:
        def convert(url: str, name: str) -> tuple[str, Dataset]:
            self.conversions += 1
            folder = Path(url.removeprefix("file://")) / name
            return f"{url}/{name}", Dataset(one(folder, numbered(9)), LOCAL, str(folder))

        settings = {"storage_options": None, "private": True, **changes}
        place = CachePlace(url=self.url, application_id="app", **settings)
        return find_or_make(place, key, seconds, "file:/orders", convert)

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def end_leases(folder: Path) -> None:
    for path in (folder / FOLDER).iterdir():
        ended = {**json.loads(path.read_text()), "ends_unix_seconds": time.time() - 1}
        path.write_text(json.dumps(ended))


def folder_of(used: Used) -> Path:
    return Path(used.url.removeprefix("file://")).parent


def test_an_equal_one_is_found_and_another_is_made(cache: Cache) -> None:
    first = cache.get()
    again = cache.get()
    assert (again.url, cache.conversions) == (first.url, 1)
    assert again.dataset.manifest.rows == 9
    assert cache.get(OTHER_KEY).url != first.url
    assert len(list((folder_of(first) / FOLDER).iterdir())) == 2
    assert folder_of(first).stat().st_mode & 0o777 == 0o700


def test_it_goes_after_its_last_lease(cache: Cache) -> None:
    first, second = cache.get(), cache.get()
    first.lease.give_back()
    assert sweep_kept(cache.url) == []
    second.lease.let_go()  # As when its process ends: it stays for the hours that were asked for.
    assert sweep_kept(cache.url) == []
    end_leases(folder_of(second))
    assert sweep_kept(cache.url) == [f"file://{folder_of(second)}"]
    assert cache.names() == set()
    cache.get()
    assert cache.conversions == 2


def test_one_that_is_being_made_is_not_swept_and_a_failed_one_goes(cache: Cache) -> None:
    unfinished = cache.folder / f"{kept.KEPT_PREFIX}{KEY[:32]}-1"
    unfinished.mkdir(parents=True)
    assert sweep_kept(cache.url) == []
    cache.get()
    assert cache.conversions == 1  # What has no manifest is no conversion.
    HeldLease(f"file://{unfinished}", HOUR)
    end_leases(unfinished)
    assert [Path(url).name for url in sweep_kept(cache.url)] == [unfinished.name]


def test_one_that_somebody_begins_to_delete_is_not_found(cache: Cache, monkeypatch: Any) -> None:
    first = cache.get()
    (folder_of(first) / "_deleting").touch()
    assert cache.get().url != first.url
    # And one that somebody has just found is not deleted: the lease is seen after the mark.
    used = cache.get(OTHER_KEY)
    end_leases(folder_of(used))
    leases_of, found = kept.leases_of, []

    def find_after_the_first_look(*arguments: Any) -> list[Lease]:
        result = leases_of(*arguments)
        if not found:
            found.append(HeldLease(f"file://{folder_of(used)}", HOUR))
        return result

    monkeypatch.setattr(kept, "leases_of", find_after_the_first_look)
    assert not kept.delete_kept(f"file://{folder_of(used)}")
    assert cache.get(OTHER_KEY).url == used.url


def test_a_damaged_one_is_made_again(cache: Cache, caplog: Any) -> None:
    first = cache.get()
    [part] = folder_of(first).glob("files/*.parquet")
    part.write_bytes(part.read_bytes()[:-20])
    assert cache.get().url != first.url
    assert "cut short" in caplog.text


def test_another_users_files_are_not_read_unless_trusted(
    cache: Cache, monkeypatch: Any, caplog: Any
) -> None:
    first = cache.get()
    me = folder_of(first).owner()
    if os.geteuid() == 0:
        os.chown(folder_of(first) / "files" / "part-00000.parquet", 65534, -1)
        me = Path(folder_of(first) / "files" / "part-00000.parquet").owner()
    else:
        monkeypatch.setattr(kept.os, "geteuid", lambda: 12345)
    assert cache.get().url != first.url
    assert f"is of user {me}, who is none of" in caplog.text
    assert cache.get(trusted_users={me}).dataset.manifest.rows == 9
    assert cache.conversions == 2


def test_a_file_that_all_may_write_is_not_read(cache: Cache, caplog: Any) -> None:
    first = cache.get()
    (folder_of(first) / "files" / "part-00000.parquet").chmod(0o666)
    assert cache.get().url != first.url
    assert "all may write to part-00000.parquet" in caplog.text


def test_leftovers_of_another_machine_go_with_their_lease(tmp_path: Path) -> None:
    ended, running, unknown = (made(tmp_path, hostname="another-host") for _ in range(3))
    for path in (ended, running):
        HeldLease(f"file://{path}", HOUR).let_go()
    end_leases(ended)
    assert [Path(url).name for url in sweep_leftovers(f"file://{tmp_path}")] == [ended.name]
    assert running.exists()
    assert unknown.exists()


def test_a_lease_is_renewed_long_before_it_ends(tmp_path: Path) -> None:
    held = HeldLease(f"file://{tmp_path}", 4.0)
    [before] = kept.leases_of(LOCAL, str(tmp_path))
    held._next = 0.0  # A quarter of its time has passed.
    time.sleep(0.01)
    held.renew_if_due()
    [after] = kept.leases_of(LOCAL, str(tmp_path))
    assert after.ends_unix_seconds > before.ends_unix_seconds
    held.give_back()
    assert kept.leases_of(LOCAL, str(tmp_path)) == []


def test_a_torn_lease_counts_for_a_day(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a.json").write_text('{"user"')
    [lease] = kept.leases_of(LOCAL, str(tmp_path))
    assert not lease.is_over
    os.utime(tmp_path / FOLDER / "a.json", (0, 0))
    assert [lease.is_over for lease in kept.leases_of(LOCAL, str(tmp_path))] == [True]
    assert set(asdict(lease)) == {"user", "hostname", "pid", "ends_unix_seconds"}


def test_the_command_lists_sweeps_and_deletes(cache: Cache, capsys: Any) -> None:
    used, ended = cache.get(), cache.get(OTHER_KEY)
    end_leases(folder_of(ended))
    assert main(["conversions", "list", str(cache.folder)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3
    line = next(line for line in told if str(folder_of(used)) in line)
    assert " 9 " in line
    assert " 0 min  " in line, "its age"
    assert "file:/orders, by " in line
    assert "for 1 h" in line or "for 60 min" in line
    assert main(["conversions", "sweep", str(cache.folder)]) == 0
    assert f"deleted file://{folder_of(ended)}" in capsys.readouterr().out
    assert main(["conversions", "delete", str(folder_of(used))]) == 1
    assert "is in use" in capsys.readouterr().out
    assert main(["conversions", "delete", used.url, "--in-use"]) == 0
    assert list_kept(cache.url) == []
    assert main(["conversions", "delete", str(cache.folder)]) == 2
    assert "is no kept conversion" in capsys.readouterr().err
