#!/usr/bin/env python3
"""Makes what a release publishes, from what is committed, and uploads nothing.

``make release URL=https://HOST/OWNER/NAME``. The address of the project stands nowhere else: from
it come the project's URLs in the metadata and the absolute links of the long description, which is
the README. Without an address there are no URLs, and its links stay relative.

The source distribution is built from a copy of the sources, the wheel from the source distribution.
Both are checked by twine, installed in empty environments, and tried there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?!https?://|#)([^)\s]+)\)")
WITHOUT_DATE = "not yet released"


def version_of(sources: Path) -> str:
    """The version that the sources say."""
    text = (sources / "sparkdl_runner" / "base" / "version.py").read_text()
    return re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)[0]


def copy_sources(folder: Path) -> None:
    """Copies all files that git keeps, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0")[:-1]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def with_absolute_links(text: str, url: str, version: str) -> str:
    """A page of the project's root with links that work anywhere: to the files of its version."""

    def absolute(found: re.Match[str]) -> str:
        is_picture, words, target = found.groups()
        kind = "raw" if is_picture else "blob"
        return f"{is_picture}[{words}]({url}/{kind}/v{version}/{target})"

    return LINK.sub(absolute, text)


def fill_in(sources: Path, url: str) -> None:
    """Writes the project's address into a copy of the sources."""
    version = version_of(sources)
    readme, setup = sources / "README.md", sources / "setup.cfg"
    readme.write_text(with_absolute_links(readme.read_text(), url, version))
    urls = {
        "Homepage": url,
        "Documentation": f"{url}/blob/v{version}/docs/README.md",
        "Changes": f"{url}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
    lines = "".join(f"    {name} = {address}\n" for name, address in urls.items())
    setup.write_text(
        setup.read_text().replace("[metadata]\n", f"[metadata]\nproject_urls =\n{lines}", 1)
    )


def build(sources: Path, folder: Path) -> tuple[Path, Path]:
    """Builds both distributions and has twine check them. Returns the wheel and the archive."""
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(sources)])
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive)])
    return wheel, archive


def install(distribution: Path, folder: Path) -> Path:
    """Makes an environment with the distribution alone; the packages it needs are this Python's.

    Returns:
        The environment's Python.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python3*/site-packages")
    # Paths in a .pth come last, and no .pth there is read: not that of an editable installation.
    others = "\n".join(path for path in sys.path if Path(path).name.endswith("-packages"))
    (packages / "packages-of-another.pth").write_text(f"{others}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    _run([*pip, "--no-deps", "--no-index", "--no-build-isolation", str(distribution)])
    return python


def try_out(python: Path, version: str) -> None:
    """Asks the installed command for a file that comes with it, in an empty folder.

    Raises:
        SystemExit: It failed, or the environment has another version.
    """
    said = "from importlib.metadata import version; print(version('sparkdl-runner'))"
    with tempfile.TemporaryDirectory(prefix="sparkdl-release-") as folder:
        found = _run([str(python), "-c", said], cwd=folder).strip()
        if found != version:
            raise SystemExit(f"The environment has sparkdl-runner {found} in place of {version}.")
        _run([str(python.parent / "sparkdl-runner"), "where", "jobs/train.py"], cwd=folder)


def run_first_example(python: Path) -> None:
    """Runs what the README shows first, in an empty folder."""
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    with tempfile.TemporaryDirectory(prefix="sparkdl-release-") as folder:
        _run([str(python), "-c", example], cwd=folder)


def _run(command: list[str], cwd: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}{command[0]} ended with {done.returncode}.")
    return done.stdout


def check_what_is_released(version: str) -> None:
    """Refuses what would be published by mistake.

    Raises:
        SystemExit: Changes are not committed, or CHANGELOG.md has no finished section.
    """
    if changed := _run(["git", "status", "--porcelain"], cwd=str(ROOT)):
        raise SystemExit(f"{changed}These changes are not committed; commit or remove them first.")
    heading = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    if heading.split()[0] != version or WITHOUT_DATE in heading:
        raise SystemExit(
            f"CHANGELOG.md begins with '## {heading}'; expected '## {version} (the day of the "
            "release)'. Write that, and commit it."
        )


def main() -> None:
    """Builds, checks, installs and tries; says what is left to do."""
    parser = argparse.ArgumentParser(description="Make what a release publishes; upload nothing.")
    parser.add_argument("--url", default="", help="the project's address, with https://")
    url = parser.parse_args().url.rstrip("/")
    if url and not url.startswith("https://"):
        raise SystemExit(f"URL is {url!r}; expected an address that begins with https://.")
    version = version_of(ROOT)
    check_what_is_released(version)
    dist = ROOT / "dist"
    with tempfile.TemporaryDirectory(prefix="sparkdl-release-") as name:
        work = Path(name)
        copy_sources(work / "sources")
        if url:
            fill_in(work / "sources", url)
        built = build(work / "sources", work / "dist")
        for distribution in built:
            python = install(distribution, work / distribution.suffix[1:])
            try_out(python, version)
            run_first_example(python)
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(work / "dist", dist)
    for distribution in built:
        digest = hashlib.sha256((dist / distribution.name).read_bytes()).hexdigest()
        print(f"{digest}  dist/{distribution.name}")
    if not url:
        print("No URL was given: the metadata has no address, and the README's links are relative.")
    print(f"Left to do: git tag v{version}, push it, and {sys.executable} -m twine upload dist/*")


if __name__ == "__main__":
    main()
