"""What a release publishes holds all that it should, and works where it is installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
URL = "https://example.com/someone/sparkdl-runner"

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "conf" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(release: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and a source distribution, checked by twine."""
    folder = tmp_path_factory.mktemp("release")
    release.copy_sources(folder / "sources")
    release.fill_in(folder / "sources", URL)
    return release.build(folder / "sources", folder / "dist")


def test_files_that_are_links_here_are_files_in_the_wheel(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    links = [path for path in (ROOT / "sparkdl_runner").rglob("*") if path.is_symlink()]
    assert len(links) >= 6
    for link in links:
        assert held[str(link.relative_to(ROOT))] == link.read_bytes()


def test_the_source_distribution_has_all_that_git_keeps(built: tuple[Path, Path]) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    kept = {name for name in listed.stdout.splitlines() if not name.startswith(".")}
    with tarfile.open(built[1]) as archive:
        held = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert kept - held == set()
    assert {name for name in held - kept if ".egg-info/" not in name} == {"PKG-INFO"}


def test_its_page_has_an_author_and_links_that_work_anywhere(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(name).decode()
    metadata = message_from_string(text)
    assert metadata["Author"] == "sparkdl-runner contributors"
    version = metadata["Version"]
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert urls["Homepage"] == URL
    assert urls["Changes"] == f"{URL}/blob/v{version}/CHANGELOG.md"
    targets = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    assert f"{URL}/raw/v{version}/docs/demo.svg" in targets
    assert f"{URL}/blob/v{version}/docs/clusters.md#horovod" in targets


def test_both_work_where_nothing_else_of_this_project_is(
    release: ModuleType, built: tuple[Path, Path], tmp_path: Path
) -> None:
    for distribution in built:
        python = release.install(distribution, tmp_path / distribution.suffix[1:])
        release.try_out(python, release.version_of(ROOT))
        with pytest.raises(SystemExit, match=r"in place of 9\.1\.0"):
            release.try_out(python, "9.1.0")
    release.run_first_example(python)  # The wheel is built of what is in the other one.


def test_what_is_not_finished_is_not_released(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(tmp_path)]
    changes = tmp_path / "CHANGELOG.md"
    changes.write_text("# Changes\n\n## 9.1.0 (not yet released)\n")
    subprocess.run([*git, "init", "--quiet"], check=True)
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md\nThese changes are not committed"):
        release.check_what_is_released("9.1.0")
    for heading in ("9.1.0 (not yet released)", "9.0.0 (2026-12-01)"):
        changes.write_text(f"# Changes\n\n## {heading}\n")
        subprocess.run([*git, "add", "CHANGELOG.md"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", heading], check=True)
        with pytest.raises(SystemExit, match=f"begins with '## {re.escape(heading)}'; expected"):
            release.check_what_is_released("9.1.0")
    changes.write_text("# Changes\n\n## 9.1.0 (2026-12-24)\n")
    subprocess.run([*git, "commit", "--quiet", "--all", "--message", "Finished"], check=True)
    release.check_what_is_released("9.1.0")
