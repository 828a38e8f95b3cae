"""In folders that all may write to, one ordinary user can do another no harm.

One process of the victim plays all rows. At the moment that matters it has the other user's shell
run a command. Both users are numbers without names, as in a container.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import traceback
import uuid
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ordinary_user import run_as
from pyarrow import fs

from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.checkpoint.directory.storage import directory_url, open_storage
from sparkdl_runner.data import (
    ConversionError,
    DatasetError,
    make_spark_converter,
    sweep_leftovers,
)
from sparkdl_runner.data.convert import replacing
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.leftovers import MARKER_NAME, PREFIX, Owner
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, Manifest
from sparkdl_runner.tracking.run import undelivered
from sparkdl_runner.tracking.run.undelivered import Undelivered

VICTIM, ATTACKER = 65533, 54321
"""Not 65534: the kernel shows that for owners that it does not know."""
CONF = Path(__file__).parents[3] / "conf"
PYTHON = """\
#!/bin/sh
case "$*" in
    -) echo "key 2.13.0 None 17" ;;
    *version*) echo 3.11 ;;
    *) echo "$0" ;;
esac
"""
"""Answers the scripts of ``conf/``."""
SECONDS_OF_A_ROW = 200
LOCAL = fs.LocalFileSystem()

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two other users"),
]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The folders of one row, and the other user's shell."""

    shared: Path
    """All may write here, and rename what belongs to others."""
    private: Path
    """A folder of the victim's alone."""
    shell: socket.socket

    @property
    def thesis(self) -> Path:
        return self.private / "thesis"

    def attack(self, command: str) -> None:
        """Has the other user's shell run a command."""
        self.shell.sendall(f"({command}) >&2; echo $?\n".encode())
        assert self.shell.recv(9) == b"0\n", command


def swapped_for_a_link_while_it_is_swept(scene: Scene) -> None:
    leftover = left_by_a_process_that_ended(scene.shared)
    has_left = Owner.has_left

    def meanwhile(owner: Owner, older_than_seconds: float | None) -> bool:
        scene.attack(
            f"cd {scene.shared}; mv {leftover.name} moved; ln -s {scene.private} {leftover}"
        )
        return has_left(owner, older_than_seconds)

    with mock.patch.object(Owner, "has_left", meanwhile):
        assert sweep_leftovers(str(scene.shared)) == []
    assert list((scene.shared / "moved").iterdir()) == []
    assert list(scene.private.iterdir()) == [scene.thesis]


def of_another_user_that_looks_like_a_leftover(scene: Scene) -> None:
    leftover = left_by_a_process_that_ended(scene.shared)
    theirs = scene.shared / f"{PREFIX}theirs"
    marker = shlex.quote((leftover / MARKER_NAME).read_text().replace(leftover.name, theirs.name))
    scene.attack(f"mkdir {theirs}; echo {marker} >{theirs}/{MARKER_NAME}; chmod 777 {theirs}")
    scene.attack(f"ln -s {scene.private} {theirs}/folder; ln -s {theirs} {scene.shared}/{PREFIX}x")
    assert sweep_leftovers(str(scene.shared)) == [f"file://{leftover}"]
    assert (theirs / MARKER_NAME).exists()


def kept_by_an_earlier_version_with_a_link(scene: Scene) -> None:
    theirs = scene.shared / f"{PREFIX}kept-0"
    lease = json.dumps({"user": "x", "hostname": "x", "pid": 1, "ends_unix_seconds": 1.0})
    scene.attack(f"mkdir -p {theirs}/_leases; echo {shlex.quote(lease)} >{theirs}/_leases/0.json")
    scene.attack(f"ln -s {scene.thesis} {theirs}/_deleting; chmod -R 777 {theirs}")
    assert sweep_leftovers(str(scene.shared)) == []
    with pytest.raises(TypeError, match="keep_hours is no more"):
        make_spark_converter(str(theirs), keep_hours=1)
    assert (theirs / "_leases").exists()


def undelivered_is_a_pipe_or_a_link(scene: Scene) -> None:
    folder, checkpoint = scene.shared / "undelivered", f"file://{scene.shared}/step-1/attempt-0"
    scene.attack(f"mkdir {folder}; chmod 777 {folder}; cd {folder}; mkfifo pipe.jsonl")
    scene.attack(f"cd {folder}; ln -s {scene.thesis} linked.jsonl")
    for run in ("pipe", "linked"):
        url = f"file://{folder}/{run}.jsonl"
        with pytest.raises(OSError, match=r"is a pipe|symbolic link"):
            undelivered.read(url)
        kept = Undelivered(run)
        kept.keep([["tag", "team", "a"]], checkpoint)
        assert undelivered.read(url) == [["tag", "team", "a"]]
        assert (folder / f"{run}.jsonl").lstat().st_mode == 0o100600
        kept.forget()
    assert list(folder.iterdir()) == []


def undelivered_is_a_link_to_a_folder(scene: Scene) -> None:
    scene.attack(f"ln -s {scene.private} {scene.shared}/undelivered")
    kept = Undelivered("thesis")
    kept.keep([["tag", "team", "a"]], f"file://{scene.shared}/step-1/attempt-0")
    assert kept.url == ""
    (scene.private / "thesis.jsonl").touch()
    undelivered.delete(f"file://{scene.shared}/undelivered/thesis.jsonl")
    assert (scene.private / "thesis.jsonl").exists()


def the_directory_of_checkpoints_is_theirs(scene: Scene) -> None:
    theirs = scene.shared / "checkpoints"
    scene.attack(f"mkdir {theirs}; chmod 777 {theirs}")
    with (
        pytest.warns(UserWarning, match=f"belongs to user id {ATTACKER}, who can exchange"),
        CheckpointManager(theirs) as checkpoints,
    ):
        checkpoints.save(1, extra=[1])
    (file,) = theirs.glob("step-1/attempt-0/manifest.json")
    assert file.stat().st_mode & 0o777 == 0o600


def a_folder_of_theirs_among_checkpoints(scene: Scene) -> None:
    scene.attack(f"mkdir -m 777 {scene.shared}/step-1; ln -s {scene.private} {scene.shared}/step-2")
    storage = open_storage(directory_url(scene.shared))
    with pytest.raises(PermissionError, match="another user's directory is in the way"):
        storage.write("step-1/attempt-0/model", b"x")
    with pytest.raises(NotADirectoryError, match="a symbolic link"):
        storage.write("step-2/attempt-0/model", b"x")
    with pytest.raises(OSError, match="step-2"):
        storage.open("step-2/thesis")


def a_cache_folder_of_theirs_to_pack_from(scene: Scene) -> None:
    scene.attack(f"mkdir {scene.shared}/theirs")
    said = said_by(scene, "pack_environment.sh", "theirs", f"{scene.private}/environment.tar.gz")
    assert f"theirs, which belongs to UNKNOWN (uid {ATTACKER})" in said


def a_cache_folder_that_they_may_write_to(scene: Scene) -> None:
    (scene.shared / "mine").mkdir()
    (scene.shared / "mine").chmod(0o777)
    scene.attack(f"mkdir -p {scene.shared}/mine/sparkdl-runner/environments")
    said = said_by(scene, "pack_environment.sh", "mine", f"{scene.private}/environment.tar.gz")
    assert "environments, which belongs to UNKNOWN" in said
    scene.attack(f"rm -r {scene.shared}/mine/sparkdl-runner")
    said = said_by(scene, "pack_environment.sh", "mine", f"{scene.private}/environment.tar.gz")
    assert "mine, which others may write to (mode 777)" in said


def a_wheelhouse_of_theirs(scene: Scene) -> None:
    scene.attack(f"mkdir {scene.shared}/wheels; touch {scene.shared}/wheels/horovod.whl")
    said = said_by(scene, "horovod/build.sh", "x", "--wheelhouse", f"{scene.shared}/wheels")
    assert f"wheels, which belongs to UNKNOWN (uid {ATTACKER})" in said
    assert "to be yours or root's, and writable by nobody else" in said


def a_delta_table_that_lists_a_file_elsewhere(scene: Scene) -> None:
    table = table_for_all(scene)
    commit(scene, table, f"../{scene.private.name}/x.parquet")
    with pytest.raises(DatasetError, match=r"lists \.\./.*x\.parquet, which leads out of"):
        make_spark_converter(str(table))


def a_delta_table_with_a_link_to_a_file_elsewhere(scene: Scene) -> None:
    table = table_for_all(scene)
    scene.attack(f"ln -s {scene.private}/x.parquet {table}/more.parquet")
    commit(scene, table, "more.parquet")
    with pytest.raises(DatasetError, match=rf"leads out of its folder.*\(uid {ATTACKER}\)"):
        make_spark_converter(str(table))


def parquet_files_with_a_link_to_one_elsewhere(scene: Scene) -> None:
    write_rows(scene.shared / "a.parquet")
    write_rows(scene.private / "x.parquet")
    scene.attack(f"ln -s {scene.private}/x.parquet {scene.shared}/b.parquet")
    with pytest.raises(DatasetError, match=rf"leads out of its folder.*\(uid {ATTACKER}\)"):
        make_spark_converter(str(scene.shared))


def a_manifest_that_is_a_link(scene: Scene) -> None:
    scene.attack(f"ln -s {scene.thesis} {scene.shared}/{MANIFEST_NAME}")
    with pytest.raises(ConversionError, match="symbolic link"):
        convert(scene)
    with pytest.raises(DatasetError):
        make_spark_converter(str(scene.shared))


def a_manifest_that_becomes_a_link(scene: Scene) -> None:
    """Before a conversion commits, and before a failed one puts the earlier manifest back."""
    link = f"ln -sf {scene.thesis} {scene.shared}/{MANIFEST_NAME}"
    convert(scene, lambda _: scene.attack(link))
    assert len(make_spark_converter(str(scene.shared))) == 3

    def end(_: str) -> None:
        scene.attack(link)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        convert(scene, end)


def a_conversion_that_is_swapped_for_a_link(scene: Scene) -> None:
    def swap(subfolder: str) -> None:
        name = subfolder.partition("/")[0]
        scene.attack(f"cd {scene.shared}; mv {name} moved; ln -s {scene.private} {name}")

    with pytest.raises(ConversionError, match="Cannot write"):
        convert(scene, swap)
    assert list(scene.private.iterdir()) == [scene.thesis]


def a_folder_that_is_given_a_conversions_name(scene: Scene) -> None:
    mine = scene.shared / "mine"
    mine.mkdir()
    (mine / "part-0.parquet").write_text("years of work")
    name = f"{replacing.SUBFOLDER_PREFIX}20260101000000-{uuid.uuid4()}"
    scene.attack(f"mv {mine} {scene.shared}/{name}")
    convert(scene)
    assert (scene.shared / name / "part-0.parquet").read_text() == "years of work"


def a_private_folder_that_they_made_first(scene: Scene) -> None:
    theirs = scene.shared / f"logs-{VICTIM}"
    for way in (f"mkdir -m 777 {theirs}", f"ln -sn {scene.private} {theirs}", f"mkfifo {theirs}"):
        scene.attack(f"rm -rf {theirs}; {way}")
        found = private_folder("logs", scene.shared)
        assert found != theirs
        assert (found.lstat().st_uid, found.lstat().st_mode) == (VICTIM, 0o40700)


ROWS = (
    swapped_for_a_link_while_it_is_swept,
    of_another_user_that_looks_like_a_leftover,
    kept_by_an_earlier_version_with_a_link,
    undelivered_is_a_pipe_or_a_link,
    undelivered_is_a_link_to_a_folder,
    the_directory_of_checkpoints_is_theirs,
    a_folder_of_theirs_among_checkpoints,
    a_cache_folder_of_theirs_to_pack_from,
    a_cache_folder_that_they_may_write_to,
    a_wheelhouse_of_theirs,
    a_delta_table_that_lists_a_file_elsewhere,
    a_delta_table_with_a_link_to_a_file_elsewhere,
    parquet_files_with_a_link_to_one_elsewhere,
    a_manifest_that_is_a_link,
    a_manifest_that_becomes_a_link,
    a_conversion_that_is_swapped_for_a_link,
    a_folder_that_is_given_a_conversions_name,
    a_private_folder_that_they_made_first,
)


def left_by_a_process_that_ended(parent: Path) -> Path:
    path = parent / f"{PREFIX}mine"
    path.mkdir()
    # The process's number lives, for another one.
    owner = replace(Owner.this_process(path.name, "app"), started_ticks=1)
    (path / MARKER_NAME).write_text(json.dumps(asdict(owner)))
    return path


def said_by(scene: Scene, script: str, cache: str, *arguments: str) -> str:
    """Runs a script of ``conf/``, which must fail and create nothing in the shared folder.

    Returns:
        Its error output.
    """
    before = sorted(scene.shared.rglob("*"))
    python = scene.private / "python"
    python.write_text(PYTHON)
    python.chmod(0o700)
    places = {"HOME": str(scene.private), "XDG_CACHE_HOME": str(scene.shared / cache)}
    done = subprocess.run(
        [CONF / script, "--python", python, *arguments],
        env={"PATH": os.environ["PATH"], **places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert sorted(scene.shared.rglob("*")) == before
    return done.stderr


def write_rows(path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0]}), path)


def table_for_all(scene: Scene) -> Path:
    from deltalake import write_deltalake

    table = scene.shared / "table"
    write_deltalake(table, pa.table({"x": [1.0]}))
    write_rows(scene.private / "x.parquet")
    for folder in (table, table / "_delta_log"):
        folder.chmod(0o777)
    return table


def commit(scene: Scene, table: Path, name: str) -> None:
    """Has the other user add a file to a table."""
    size = (scene.private / "x.parquet").stat().st_size
    what = {"path": name, "size": size, "modificationTime": 0, "dataChange": True}
    text = shlex.quote(json.dumps({"add": {**what, "partitionValues": {}}}))
    scene.attack(f"echo {text} >{table}/_delta_log/{1:020}.json")


def convert(scene: Scene, meanwhile: Callable[[str], None] = lambda _: None) -> None:
    """Writes a conversion to the shared folder; calls a function before its commit."""

    def write(subfolder: str) -> Manifest:
        (scene.shared / subfolder).mkdir()
        write_rows(scene.shared / subfolder / "part-0.parquet")
        found = describe_parquet(LOCAL, str(scene.shared), [f"{subfolder}part-0.parquet"])
        meanwhile(subfolder)
        return found

    replacing.replace(LOCAL, str(scene.shared), "local-1", write)


def play(folder: Path, shell: int) -> str:
    """As the victim: plays all rows. Returns what was wrong in each, as JSON."""
    connection = socket.socket(fileno=shell)
    return json.dumps({row.__name__: fault_of(row, folder, connection) for row in ROWS})


def fault_of(row: Callable[[Scene], None], folder: Path, shell: socket.socket) -> str:
    shared, private = (folder / f"{row.__name__}-{kind}" for kind in ("shared", "private"))
    for made, mode in ((shared, 0o777), (private, 0o700)):
        made.mkdir()
        made.chmod(mode)
    scene = Scene(shared=shared, private=private, shell=shell)
    scene.thesis.write_text("years of work")
    scene.thesis.chmod(0o600)
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(SECONDS_OF_A_ROW)
    try:
        with warnings.catch_warnings():
            row(scene)
        assert scene.thesis.read_text() == "years of work"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    return ""


def too_late(*_: Any) -> None:
    raise TimeoutError(f"it waits for more than {SECONDS_OF_A_ROW} s")


@pytest.fixture(scope="module")
def faults() -> dict[str, str]:
    """The traceback of each row that failed, by its name; empty for a row that passed.

    pytest's own folders will not do: the other user cannot reach them.
    """
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    ours, theirs = socket.socketpair()
    attacker = subprocess.Popen(
        ["sh"], user=ATTACKER, group=ATTACKER, extra_groups=[], stdin=theirs, stdout=theirs
    )
    theirs.close()
    with attacker, ours:
        said = run_as(VICTIM, play, folder, ours.fileno(), fds=[ours.fileno()])
        ours.shutdown(socket.SHUT_RDWR)
    shutil.rmtree(folder)
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("row", [row.__name__ for row in ROWS])
def test_one_user_does_another_no_harm(faults: dict[str, str], row: str) -> None:
    assert not faults[row], faults[row]
