"""What of a script's folder travels, what stays behind, and how it is unpacked."""

from __future__ import annotations

import re
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.script import folder
from sparkdl_runner.launch.script.folder import Archive, File, read_folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "train.py": "import model",
        "model.py": "",
        "package/__init__.py": "",
        "package/deep/block.py": "",
        "config/small.yaml": "epochs: 1",
        "data/train.csv": "1,2",
        "secrets.py": "",
        ".env": "TOKEN=x",
        "config/server.pem": "",
        ".git/hooks/hook.py": "",
        ".venv/lib/site.py": "",
        "environment/pyvenv.cfg": "",
        "environment/lib/site.py": "",
        "package/__pycache__/block.py": "",
        "mlruns/0/model.py": "",
        "own.egg-info/setup.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


CODE = {"train.py", "model.py", "package/__init__.py", "package/deep/block.py", "secrets.py"}


def names(archive: Archive) -> set[str]:
    return {file.name for file in archive.files}


@pytest.mark.parametrize(
    ("patterns", "more"),
    [
        ([], set()),
        (["*.yaml"], {"config/small.yaml"}),
        (["data/"], {"data/train.csv"}),
        (["./data/*.csv", "config"], {"data/train.csv", "config/small.yaml"}),
        (["*"], {"data/train.csv", "config/small.yaml"}),
        (["."], {"data/train.csv", "config/small.yaml"}),
    ],
)
def test_python_files_travel_and_what_is_asked_for(project, patterns, more):
    archive = read_folder(project, patterns)
    assert names(archive) == CODE | more
    assert set(archive.left_out) == {".env", "config/server.pem"}


def test_a_link_to_a_secret_does_not_travel_and_one_to_data_does(project, tmp_path):
    (tmp_path / "id_rsa").write_text("PRIVATE")
    (tmp_path / "rows").write_text("1,2")
    (project / "innocent.txt").symlink_to(tmp_path / "id_rsa")
    (project / "rows.csv").symlink_to(tmp_path / "rows")
    (project / "loop").symlink_to(project)
    archive = read_folder(project, ["rows.csv", "."])
    assert "innocent.txt" in archive.left_out
    assert {file.name: file.data for file in archive.files}["rows.csv"] == b"1,2"
    assert not any(name.startswith("loop") for name in names(archive))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("*.json", "files has '*.json', and {} has no such file. Links to folders are not"),
        (".git", "files has '.git', and {} has no such file."),
        ("../data", "files has '../data', which is not below {}: only files in the script's"),
        ("/data", "files has '/data', which is not below {}"),
    ],
)
def test_a_pattern_that_names_nothing_is_refused(project, pattern, words):
    with pytest.raises(ValueError, match=re.escape(words.format(project))):
        read_folder(project, [pattern])


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(project, monkeypatch):
    monkeypatch.setattr(folder, "MOST_BYTES", 200_000)
    (project / "data" / "large.bin").write_bytes(bytes(150_000))
    (project / "data" / "larger.bin").write_bytes(bytes(160_000))
    assert names(read_folder(project, [])) == CODE, "only what would travel counts"
    words = (
        r"take 0.3 MB, and at most 0.2 MB can\. The largest are data/larger.bin \(0.2 MB\), data"
    )
    with pytest.raises(LaunchError, match=words):
        read_folder(project, ["data"])


def test_a_folder_of_too_many_files_is_refused_as_no_scripts_own(project, monkeypatch):
    monkeypatch.setattr(folder, "MOST_ENTRIES", 10)
    with pytest.raises(LaunchError, match=r"holds more than 10 files and folders.* of its own"):
        read_folder(project, [])


def test_a_file_that_cannot_be_read_is_named(project, monkeypatch):
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(LaunchError, match=r"Permission denied: '.*\.py'. Make it readable"):
        read_folder(project, [])


def test_the_copy_is_for_this_users_eyes_alone_and_programs_stay_programs(project, tmp_path):
    (project / "tool.sh").write_text("#!/bin/sh\n")
    (project / "tool.sh").chmod(0o755)
    copy = tmp_path / "copy"
    read_folder(project, ["tool.sh"]).unpack(copy)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert stat.S_IMODE((copy / "package").stat().st_mode) == 0o700
    assert stat.S_IMODE((copy / "train.py").stat().st_mode) == 0o600
    assert stat.S_IMODE((copy / "tool.sh").stat().st_mode) == 0o700
    assert (copy / "train.py").read_text() == "import model"
    with pytest.raises(FileExistsError):
        read_folder(project, []).unpack(copy)


NAMES = st.lists(st.sampled_from(["..", ".", "a", "b.py", "", "/", "\0"]), max_size=5).map("/".join)


@given(name=NAMES)
def test_no_name_leads_out_of_the_copy(tmp_path_factory, name):
    below = tmp_path_factory.mktemp("rank")
    archive = Archive((File("train.py", b""), File(name, b"x")))
    before = {path for path in below.parent.glob("*") if path != below}
    with suppress(ValueError, OSError):
        archive.unpack(below / "copy")
    written = {path.relative_to(below).parts[0] for path in below.rglob("*")}
    assert written <= {"copy"}
    assert {path for path in below.parent.glob("*") if path != below} == before
