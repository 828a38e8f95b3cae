"""Another user of the host can neither read nor change a training."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ordinary_user import run_as

from sparkdl_runner import DistributedRunner, HorovodRunner, runner
from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.data.dataset.leftovers import process_directory
from sparkdl_runner.data.errors import ChangedFileError

NOBODY, SOMEBODY = 65534, 65533
DAEMON = 1
"""A user who has a name, without which Spark does not start."""
PATIENCE_SECONDS = 500

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]

ATTACK_ON_HOROVOD = textwrap.dedent(
    """
    import http.client, sys

    port, secret = sys.stdin.read().split()
    port = int(port)
    for prefix in ("", f"/{secret}:{port}"):
        for scope in ("global", "cross_0"):
            for key in ("rank_0", "rank_1", "0", "1"):
                for method in ("PUT", "GET", "DELETE"):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
                    try:
                        connection.request(method, f"{prefix}/{scope}/{key}", body=b"garbage")
                        print(method, connection.getresponse().status)
                    except (ConnectionError, http.client.HTTPException):
                        print("refused")
                    connection.close()
    """
)


ATTACK_ON_TORCH = textwrap.dedent(
    """
    import socket, sys

    port = int(sys.stdin.read())
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        try:
            print("refused" if connection.recv(1) == b"" else "answered")
        except ConnectionResetError:
            print("refused")
    """
)


def tell_and_wait(folder: Path, place: str) -> None:
    if os.environ["RANK"] == "0":
        (folder / "new").write_text(place)
        (folder / "new").rename(folder / "place")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (folder / "attacked").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def waits_to_be_attacked(folder: Path) -> float:
    import torch

    port, address = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{one}"] for one in ("PORT", "ADDR"))
    tell_and_wait(folder, f"{port} {address.partition('/')[2]}")

    import horovod.torch as hvd

    hvd.init()
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum))


def waits_to_be_attacked_with_torch(folder: Path) -> float:
    import torch
    from torch import distributed

    tell_and_wait(folder, os.environ["MASTER_PORT"])
    total = torch.ones(1)
    for _ in range(2):
        distributed.init_process_group("gloo")
        distributed.all_reduce(total)
        distributed.destroy_process_group()
    return float(total)


def attack(folder: Path, how: str, run: Callable[[], object]) -> tuple[object, list[str]]:
    """Attacks a run, once it says where. Returns its result, and what the attacker saw."""
    attacker = subprocess.Popen(
        ["/usr/bin/python3", "-c", how],
        user=NOBODY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def wait_and_attack() -> str:
        while not (folder / "place").exists():
            time.sleep(0.05)
        said, _ = attacker.communicate((folder / "place").read_text())
        (folder / "attacked").touch()
        return said

    with attacker, ThreadPoolExecutor(1) as threads:
        said = threads.submit(wait_and_attack)
        return run(), said.result().split()


def train_with_horovod(folder: Path) -> float:
    return HorovodRunner(np=-2).run(waits_to_be_attacked, folder=folder)


def train_with_torch(folder: Path) -> float:
    runner = DistributedRunner(num_proc=-2, backend="torch")
    return runner.run(waits_to_be_attacked_with_torch, folder=folder)


def imports_what_lies_on_the_driver() -> float:
    """Whether a rank, and a process that it starts, find the driver's module: 0, 1 or 2 of them."""
    code = "import shop_settings"
    child = subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        exec(code, {})
    except ModuleNotFoundError:
        return float(child.returncode == 0)
    return 1.0 + (child.returncode == 0)


def train_on_another_host(folder: Path) -> float:
    """Trains where the folder of the driver's modules may be another one of that name."""
    from pyspark.sql import SparkSession

    sys.path.insert(0, (folder / "project").read_text())
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    with (
        session.getOrCreate(),
        mock.patch.object(runner, "own_files", return_value="those of the driver's host"),
    ):
        return DistributedRunner(num_proc=1).run(imports_what_lies_on_the_driver)


def by_an_ordinary_user(
    train: Callable[[Path], float], folder: Path, user: int = SOMEBODY
) -> float:
    """Trains as a user who has no home; ``SOMEBODY`` has no name either."""
    return float(run_as(user, train, folder).split()[-1])


@pytest.fixture(params=["root", "an ordinary user"])
def train_as(request: pytest.FixtureRequest) -> Callable[[Callable[[Path], float], Path], float]:
    """Trains as one of two users, who is attacked by a third."""
    return by_an_ordinary_user if request.param != "root" else lambda train, folder: train(folder)


def test_horovods_rendezvous_takes_nothing_from_another_user(train_as, tmp_path: Path) -> None:
    """Not even from one who has found out the secret."""
    result, seen = attack(
        tmp_path, ATTACK_ON_HOROVOD, lambda: train_as(train_with_horovod, tmp_path)
    )
    assert result == 2.0
    assert seen == ["refused"] * 48


def test_the_published_port_of_torchs_store_is_not_for_another_user(
    train_as, tmp_path: Path
) -> None:
    result, seen = attack(tmp_path, ATTACK_ON_TORCH, lambda: train_as(train_with_torch, tmp_path))
    assert result == 4.0
    assert seen == ["refused"]


@pytest.mark.parametrize("is_theirs", [True, False])
def test_no_module_is_imported_that_another_user_of_a_ranks_host_put_there(
    tmp_path: Path, shared_folder: Path, is_theirs: bool
) -> None:
    project = shared_folder / "project"
    module = project / "shop_settings.py"
    make = f"import os; os.mkdir({str(project)!r}, 0o755); open({str(module)!r}, 'w').close()"
    assert as_nobody(make) == ""
    if not is_theirs:
        for path in (project, module):
            os.chown(path, DAEMON, DAEMON)
    (tmp_path / "project").write_text(str(project))
    found = by_an_ordinary_user(train_on_another_host, tmp_path, DAEMON)
    assert found == (0.0 if is_theirs else 2.0)


def as_nobody(code: str) -> str:
    command = ["/usr/bin/python3", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, user=NOBODY, group=NOBODY, capture_output=True, text=True)
    return done.stdout + "".join(done.stderr.splitlines()[-1:])


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder like /tmp, which other users can reach and write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def test_what_is_converted_cannot_be_read_nor_swapped(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache folder of a local master, which the other user was the first to make."""
    monkeypatch.setattr(tempfile, "tempdir", str(shared_folder))
    theirs = str(shared_folder / f"sparkdl_runner-cache-{getpass.getuser()}")
    assert as_nobody(f"import os; os.mkdir({theirs!r}); os.chmod({theirs!r}, 0o777)") == ""
    parent = str(private_folder("sparkdl_runner-cache"))
    assert parent != theirs
    place = process_directory(f"file://{parent}", "app", private=True).removeprefix("file://")
    part = f"{place}/part-0.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0]}), part)
    for attempt in (f"os.listdir({place!r})", f"open({part!r})"):
        assert "Permission denied" in as_nobody(f"import os; {attempt}")
    assert "not permitted" in as_nobody(f"import os; os.rename({parent!r}, {theirs + '/x'!r})")


def test_a_file_of_another_users_is_not_trained_on(shared_folder: Path) -> None:
    """In a folder that all may write to, of the same name, size, rows and time."""
    folder = shared_folder / "set"
    folder.mkdir()
    folder.chmod(0o777)
    part = folder / "part-0.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0]}), part)
    converter = make_spark_converter(f"file://{folder}")
    attack = f"""
        import os
        part = {str(part)!r}
        before, content = os.stat(part), open(part, "rb").read()
        os.rename(part, part + ".old")
        open(part, "wb").write(content)
        os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    """
    assert as_nobody(attack) == ""
    with (
        pytest.raises(ChangedFileError, match=r"part-0\.parquet is not the file .* user nobody"),
        converter.make_torch_dataloader(1, num_epochs=1),
    ):
        pass
