"""Which checkpoints stay."""

from __future__ import annotations

import errno
import math

import pytest

from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.checkpoint.directory.storage import LocalStorage


def kept(directory, losses, **settings) -> list[int]:
    with CheckpointManager(directory, **settings) as checkpoints:
        for step, loss in enumerate(losses, 1):
            checkpoints.save(step, metrics={} if loss is None else {"loss": loss})
    return [name.step for name in listed(directory)]


def listed(directory):
    with CheckpointManager(directory) as checkpoints:
        return checkpoints.list()


def test_the_newest_stay(tmp_path):
    assert kept(tmp_path, [None] * 6, keep_last=2) == [5, 6]
    assert not (tmp_path / "step-1").exists()


@pytest.mark.parametrize(
    ("mode", "losses", "expected"),
    [
        ("min", [3, 1, 2, 4, 5], [2, 3, 5]),
        ("max", [3, 1, 2, 0, -5], [1, 3, 5]),
        ("min", [3, math.nan, 2, math.nan, math.nan], [1, 3, 5]),
        ("max", [math.nan, math.nan, math.nan], [3]),
        ("min", [None, -math.inf, 4, math.inf, None], [2, 3, 5]),
        ("min", [1, 1, 1, 1], [3, 4]),
    ],
)
def test_the_best_stay_too_and_nan_is_never_good(tmp_path, mode, losses, expected):
    settings = {"keep_last": 1, "keep_best": 2, "best_metric": "loss", "best_mode": mode}
    assert kept(tmp_path, losses, **settings) == expected


def test_the_best_of_an_earlier_attempt_stays(tmp_path):
    settings = {"keep_last": 1, "keep_best": 1, "best_metric": "loss"}
    assert kept(tmp_path, [3, 1, 2], **settings) == [2, 3]
    with CheckpointManager(tmp_path, **settings) as checkpoints:
        assert checkpoints.restore().metrics == {"loss": 2}
        checkpoints.save(4, metrics={"loss": 9})
        checkpoints.wait()
        assert [name.step for name in checkpoints.list()] == [2, 4]


def test_the_new_one_stays_even_if_older_ones_have_higher_steps(tmp_path):
    assert kept(tmp_path, [None] * 5, keep_last=1) == [5]
    with (
        CheckpointManager(tmp_path, keep_last=1) as checkpoints,
        pytest.warns(UserWarning, match="step 5"),
    ):
        checkpoints.save(1)
    assert [name.step for name in listed(tmp_path)] == [1, 5]


def test_nothing_is_removed_before_the_new_one_is_committed_and_manifests_go_first(
    tmp_path, monkeypatch
):
    deleted = []
    delete = LocalStorage.delete

    def note(self, name):
        deleted.append(name)
        assert (tmp_path / "step-2" / "attempt-0" / "manifest.json").exists()
        delete(self, name)

    monkeypatch.setattr(LocalStorage, "delete", note)
    assert kept(tmp_path, [None, None], keep_last=1) == [2]
    assert deleted[0] == "step-1/attempt-0/manifest.json"
    assert len(deleted) == 3


def test_what_other_ranks_are_still_writing_stays_and_what_the_dead_left_goes(tmp_path):
    """Ranks write their files of the next step before rank 0 has committed this one."""
    assert kept(tmp_path, [None]) == [1]  # attempt 0
    with CheckpointManager(tmp_path, keep_last=1) as checkpoints:
        checkpoints.save(2)
        checkpoints.wait()
        half = [tmp_path / f"step-{step}" / "attempt-1" / "rank-1.json" for step in (3, 4)]
        left = tmp_path / "step-3" / "attempt-0" / "rank-1.json"
        for path in [*half, left]:
            path.parent.mkdir(parents=True)
            path.write_text("{}")
        checkpoints.save(5)
    assert all(path.exists() for path in half)
    assert not left.exists()
    assert [name.step for name in listed(tmp_path)] == [5]


def test_that_old_ones_cannot_be_removed_is_no_failure(tmp_path, monkeypatch, caplog):
    def refuse(self, name):
        raise PermissionError(13, "no")

    monkeypatch.setattr(LocalStorage, "delete", refuse)
    assert kept(tmp_path, [None] * 3, keep_last=1) == [1, 2, 3]
    assert "could not remove old checkpoints" in caplog.text


def test_old_ones_go_where_the_storage_fails_at_times(tmp_path, monkeypatch, caplog):
    """Each file's removal fails once, also after the manifest, which makes it a checkpoint."""
    failed = set()
    delete = LocalStorage.delete

    def fail_once(self, name):
        if name not in failed:
            failed.add(name)
            raise TimeoutError(errno.ETIMEDOUT, "the mount does not answer", name)
        delete(self, name)

    monkeypatch.setattr(LocalStorage, "delete", fail_once)
    assert kept(tmp_path, [None] * 3, keep_last=1) == [3]
    assert len(failed) > 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts", "step-3"]
    assert not caplog.text


def test_what_one_removal_left_goes_with_the_next(tmp_path, monkeypatch, caplog):
    delete = LocalStorage.delete

    def refuse(self, name):
        if name.startswith("step-1/") and not name.endswith("/manifest.json"):
            raise PermissionError(errno.EACCES, "no")
        delete(self, name)

    with CheckpointManager(tmp_path, keep_last=1) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "delete", refuse)
            for step in (1, 2):
                checkpoints.save(step)
            checkpoints.wait()
        assert (tmp_path / "step-1").exists()
        assert "could not remove old checkpoints" in caplog.text
        checkpoints.save(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts", "step-3"]


@pytest.mark.parametrize(
    "settings",
    [
        {"keep_last": 0},
        {"keep_best": -1},
        {"keep_best": 1},
        {"keep_best": 0, "best_metric": "loss"},
        {"best_mode": "least"},
        {"every_steps": 0},
        {"every_seconds": 0},
    ],
)
def test_settings_out_of_range(tmp_path, settings):
    with pytest.raises(ValueError, match=r"expected|together"):
        CheckpointManager(tmp_path, **settings)


def test_settings_of_another_type(tmp_path):
    for settings in ({"keep_last": 1.5}, {"every_steps": True}):
        with pytest.raises(TypeError, match="whole number"):
            CheckpointManager(tmp_path, **settings)
    with pytest.raises(TypeError, match="URL or a path"):
        CheckpointManager(3)
