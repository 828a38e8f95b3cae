"""Selects the files of a script's folder that are sent to the ranks, and unpacks them there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from sparkdl_runner.errors import LaunchError

MOST_BYTES = 64 << 20
# A script that lies in a home folder: to look through all of it would take minutes.
MOST_ENTRIES = 20_000
_SHOWN = 5

# Besides every folder whose name begins with a dot, and every virtual environment.
_LEFT_OUT = ("__pycache__", "node_modules", "mlruns", "spark-warehouse", "*.egg-info")
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
_SECRETS = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pgpass", ".databrickscfg", ".pypirc", ".npmrc"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.tfstate"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "credentials", "credentials.*"),
    *("secrets", "secrets.*", "*token", "*token.txt", "client_secret*.json", "kaggle.json"),
)


@dataclass(frozen=True)
class File:
    """One file of a folder."""

    name: str
    """The file's path below the folder, with slashes."""
    data: bytes = field(repr=False)
    is_executable: bool = False


@dataclass(frozen=True)
class Archive:
    """Files of a folder, which travel inside the ranks' function: by Spark's own transport."""

    files: tuple[File, ...]
    left_out: tuple[str, ...] = ()
    """Files that look as if they held secrets."""

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(len(file.data) for file in self.files)

    def unpack(self, folder: Path) -> None:
        """Makes ``folder``, for this user's eyes alone, and writes the files into it.

        Raises:
            FileExistsError: There is something of its name already.
            ValueError: A file's name leads out of the folder.
        """
        for file in self.files:
            path = PurePosixPath(file.name)
            if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in file.name:
                raise ValueError(
                    f"a file of the script's folder is called {file.name!r}, which leads out of it."
                )
        folder.mkdir(mode=0o700)
        for file in self.files:
            target = folder / file.name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.write_bytes(file.data)
            target.chmod(0o700 if file.is_executable else 0o600)


def read_folder(folder: Path, patterns: Sequence[str]) -> Archive:
    """Reads a folder's Python files, and those of its other files that are asked for.

    Folders that are no code of its own (``.git``, virtual environments, ``__pycache__``, whatever
    begins with a dot) and files of secrets are left out. Links to folders are not followed.

    Args:
        folder: The folder.
        patterns: Other files, such as ``"*.yaml"`` (at any depth), ``"data/train.csv"``, or a
            folder, ``"data"``.

    Raises:
        LaunchError: They are too large, there are too many, or one cannot be read.
        ValueError: A pattern matches no file.
    """
    for pattern in patterns:
        if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
            raise ValueError(
                f"files has {pattern!r}, which is not below {folder}: only files in the script's "
                "folder travel with it. Give the path of others as an argument, in a folder that "
                "all hosts see."
            )
    chosen: list[tuple[str, Path]] = []
    secrets: list[str] = []
    matched: set[str] = set()
    for path in _files_below(folder):
        name = path.relative_to(folder).as_posix()
        by = {pattern for pattern in patterns if _matches(name, pattern)}
        matched |= by
        if not name.endswith(".py") and _is_secret(path):
            secrets.append(name)
        elif by or name.endswith(".py"):
            chosen.append((name, path))
    for pattern in patterns:
        if pattern not in matched:
            raise ValueError(
                f"files has {pattern!r}, and {folder} has no such file. Links to folders are not "
                "followed; folders that begin with a dot, virtual environments, __pycache__ and "
                "the like are left out."
            )
    try:
        sizes = {name: path.stat().st_size for name, path in chosen}
        _check_size(folder, sizes)
        files = tuple(
            File(name, path.read_bytes(), os.access(path, os.X_OK)) for name, path in chosen
        )
    except OSError as error:
        raise LaunchError(
            f"A file of the script's folder cannot be read: {error}. Make it readable, or move it "
            "elsewhere."
        ) from error
    return Archive(files, tuple(secrets))


def _files_below(folder: Path) -> Iterator[Path]:
    """The regular files, in order, without those of folders that are left out."""
    waiting, seen = [folder], 0
    while waiting:
        here = waiting.pop()
        with os.scandir(here) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
        seen += len(entries)
        if seen > MOST_ENTRIES:
            raise LaunchError(
                f"{folder} holds more than {MOST_ENTRIES:,} files and folders, which is more than "
                "the folder of a script: move the script, and what it imports, into a folder of "
                "its own."
            )
        if here != folder and any(entry.name in _ENVIRONMENT_MARKS for entry in entries):
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                is_left_out = any(fnmatchcase(entry.name, pattern) for pattern in _LEFT_OUT)
                if not entry.name.startswith(".") and not is_left_out:
                    waiting.append(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)


def _matches(name: str, pattern: str) -> bool:
    pattern = pattern.removeprefix("./").rstrip("/")
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}/") or pattern in ("", ".")


def _is_secret(path: Path) -> bool:
    """Whether a file, or what it is a link to, is called as files of secrets are."""
    names = {path.name.lower(), path.resolve().name.lower()}
    return any(fnmatchcase(name, pattern) for name in names for pattern in _SECRETS)


def _check_size(folder: Path, sizes: dict[str, int]) -> None:
    size = sum(sizes.values())
    if size <= MOST_BYTES:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN]
    listed = ", ".join(f"{name} ({megabytes(sizes[name])})" for name in largest)
    raise LaunchError(
        f"The files of {folder} that are to travel with the script take {megabytes(size)}, and at "
        f"most {megabytes(MOST_BYTES)} can. The largest are {listed}. Put data where all hosts see "
        "it, and give the script its path; or move the script into a folder of its own."
    )


def megabytes(size_bytes: int) -> str:
    """A size in words."""
    if size_bytes < 100_000:
        return f"{size_bytes / 1e3:.1f} KB"
    return f"{size_bytes / 1e6:,.1f} MB"
