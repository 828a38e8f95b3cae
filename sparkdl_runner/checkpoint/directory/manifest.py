"""The manifest: what a checkpoint holds, written last, as its commit.

``step-N/attempt-A`` holds the states ``model``, ``optimizer`` and ``extra``, or ``sharded/``;
``rng-R`` and ``rank-R.json`` of each rank; and ``manifest.json``. Readers trust only what the
manifest lists; a directory without one is not a checkpoint. How a state is written is in
``state_files``; in format version 1 it was what ``torch.save`` writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.base.foreign_file import ForeignFileError, build, is_inside
from sparkdl_runner.checkpoint.directory.files import FileEntry, read_entry, read_file
from sparkdl_runner.checkpoint.directory.sealed import seal, unseal
from sparkdl_runner.checkpoint.directory.state_files import state_in
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import DamageError

MANIFEST = "manifest.json"
MODEL, OPTIMIZER, EXTRA = "model", "optimizer", "extra"
FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, FORMAT_VERSION)

_NAME = re.compile(r"step-(0|[1-9][0-9]{0,17})/attempt-(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, kw_only=True, order=True)
class Name:
    """The place of a checkpoint; ordered from the oldest to the newest."""

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"step-{self.step}/attempt-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """Reads ``step-N/attempt-A``; None if it is something else."""
        found = _NAME.fullmatch(text)
        return cls(step=int(found[1]), attempt=int(found[2])) if found else None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a manifest: everything that a checkpoint says of itself."""

    step: int
    epoch: int | None
    attempt: int
    world_size: int
    created: str
    """When, as ISO 8601 in UTC."""
    sharded: bool
    parameters: dict[str, dict[str, Any]]
    """Shape and dtype of each tensor of the model, by name."""
    optimizer_class: str | None
    """None without an optimizer; empty if whoever saved did not know it."""
    metrics: dict[str, float]
    loader: Any
    """The loader's ``state_dict``, or None."""
    resumable: dict[str, Any]
    """See :mod:`sparkdl_runner.rank.resumable`."""
    files: tuple[FileEntry, ...]
    best_metric: str | None = None
    """Which of the metrics says what is best, if one does."""
    best_mode: str = "min"
    """Whether small (``"min"``) or large (``"max"``) is good."""
    versions: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def name(self) -> Name:
        """Its step and attempt, which name its folder."""
        return Name(step=self.step, attempt=self.attempt)

    def first_file(self, state: str) -> str | None:
        """The first file of a state; None if the checkpoint does not hold it."""
        paths = (entry.path for entry in self.files if state_in(entry.path) == state)
        return next((path for path in paths if "~" not in path), None)

    def to_bytes(self) -> bytes:
        """The content of ``manifest.json``."""
        fields = {**vars(self), "files": [dict(vars(entry)) for entry in self.files]}
        if self.best_metric is None:  # Versions that know nothing of it then read this one.
            del fields["best_metric"], fields["best_mode"]
        return seal(fields)

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Reads what ``to_bytes`` returned.

        Raises:
            DamageError: It is damaged, or of another format version.
        """
        fields = unseal(text, MANIFEST)
        version = fields.get("format_version")
        if version not in _READABLE_VERSIONS:
            raise DamageError(
                f"{MANIFEST} has format version {version!r:.60}, and this version of "
                f"sparkdl_runner reads versions up to {FORMAT_VERSION}"
            )
        try:
            manifest = build(cls, {**fields, "files": read_entries(fields.get("files"))})
            if not all("shape" in parameter for parameter in manifest.parameters.values()):
                raise ForeignFileError("a parameter has no shape")
        except ForeignFileError as error:
            raise DamageError(f"{MANIFEST} lacks something, or has too much ({error})") from None
        return manifest


def rank_file(rank: int) -> str:
    """The path of a rank's list of its files, which it writes last."""
    return f"rank-{rank}.json"


def generators_state(rank: int) -> str:
    """The name of the states of a rank's random number generators."""
    return f"rng-{rank}"


def read_entries(entries: Any) -> tuple[FileEntry, ...]:
    """File entries from JSON.

    Raises:
        ForeignFileError: They are none, or not of files in the checkpoint's directory.
    """
    if not isinstance(entries, list):
        raise ForeignFileError("it has no list of files")
    files = tuple(build(FileEntry, entry) for entry in entries)
    for entry in files:
        if not is_inside(entry.path) or entry.size_bytes < 0:
            raise ForeignFileError(f"it lists {entry.path!r:.200}, which is no file in its folder")
    return files


def read_manifest(storage: Storage, name: Name) -> Manifest:
    """Reads and checks the manifest of a checkpoint.

    Raises:
        DamageError: It is not what was written, or that of another checkpoint.
    """
    manifest = Manifest.from_bytes(read_file(storage, str(name), MANIFEST)[0])
    if manifest.name != name:
        raise DamageError(f"{MANIFEST} is of {manifest.name}, so it was copied or moved here")
    return manifest


def problems_of(storage: Storage, name: Name) -> list[str]:
    """Reads all of a checkpoint; says what is wrong with each file that is not as it was."""
    try:
        manifest = read_manifest(storage, name)
    except DamageError as problem:
        return [str(problem)]
    problems = []
    for entry in manifest.files:
        try:
            read_entry(storage, str(name), entry, keep=False)
        except DamageError as problem:
            problems.append(str(problem))
    return problems
