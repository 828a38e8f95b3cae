"""Whether every byte of a checkpoint is as it was written."""

from __future__ import annotations

from sparkdl_runner.checkpoint.directory.files import DamageError, check_file, read_bytes
from sparkdl_runner.checkpoint.directory.manifest import MANIFEST, Manifest, Name
from sparkdl_runner.checkpoint.directory.sealed import BrokenSealError
from sparkdl_runner.checkpoint.directory.storage import Storage


def read_manifest(storage: Storage, name: Name) -> Manifest:
    """Reads and checks the manifest of a checkpoint.

    Raises:
        DamageError: It is not what was written, or that of another checkpoint.
    """
    try:
        manifest = Manifest.from_bytes(read_bytes(storage, f"{name}/{MANIFEST}"))
    except BrokenSealError as problem:
        raise DamageError(f"{MANIFEST} is damaged: {problem}") from None
    except DamageError as problem:
        raise type(problem)(f"{MANIFEST} {problem}") from None
    if manifest.name != name:
        raise DamageError(f"{MANIFEST} is of {manifest.name}, so it was copied or moved here")
    return manifest


def problems_of(storage: Storage, name: Name) -> list[str]:
    """All that is wrong with a checkpoint, each in a few words; empty if it is as it was."""
    try:
        manifest = read_manifest(storage, name)
    except DamageError as problem:
        return [str(problem)]
    problems = []
    for entry in manifest.files:
        try:
            check_file(storage, str(name), entry)
        except DamageError as problem:
            problems.append(str(problem))
    return problems
