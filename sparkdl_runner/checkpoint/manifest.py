"""The manifest: what a checkpoint holds, written last, as its commit.

``step-N/attempt-A`` holds ``model.pt``, ``optimizer.pt`` and ``extra.pt``, or ``sharded/``;
``rng-R.pt`` and ``rank-R.json`` of each rank; and ``manifest.json``. Readers trust only what the
manifest lists; a directory without one is not a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.checkpoint.sealed import BrokenSealError, seal, unseal

MANIFEST = "manifest.json"
MODEL, OPTIMIZER, EXTRA = "model.pt", "optimizer.pt", "extra.pt"
FORMAT_VERSION = 1

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
class FileEntry:
    """One file of a checkpoint."""

    path: str
    """Relative to the checkpoint's directory, with ``/`` between its parts."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that a checkpoint says of itself."""

    step: int
    epoch: int | None
    attempt: int
    world_size: int
    created: str
    """When, as ISO 8601 in UTC."""
    sharded: bool
    parameters: dict[str, Any]
    """Shape and dtype of each tensor of the model, by name."""
    optimizer_class: str | None
    metrics: dict[str, float]
    loader: Any
    """The loader's ``state_dict``, or None."""
    resumable: dict[str, Any]
    """See :mod:`sparkdl_runner.resumable`."""
    files: tuple[FileEntry, ...]
    versions: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def name(self) -> Name:
        """Where it belongs."""
        return Name(step=self.step, attempt=self.attempt)

    def holds(self, path: str) -> bool:
        """Whether there is a file of that name."""
        return any(entry.path == path for entry in self.files)

    def to_bytes(self) -> bytes:
        """The content of ``manifest.json``."""
        files = [dict(vars(entry)) for entry in self.files]
        return seal({**vars(self), "files": files})

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Reads what ``to_bytes`` returned.

        Raises:
            BrokenSealError: It is damaged, or of another format version.
        """
        fields = unseal(text)
        version = fields.get("format_version")
        if version != FORMAT_VERSION:
            raise BrokenSealError(
                f"it has format version {version!r}, and this version of sparkdl_runner reads "
                f"version {FORMAT_VERSION}"
            )
        try:
            return cls(**{**fields, "files": read_entries(fields["files"])})
        except (TypeError, KeyError) as error:
            raise BrokenSealError(f"it lacks something, or has too much ({error})") from None


def rank_file(rank: int) -> str:
    """Where a rank lists its own files, once they are written."""
    return f"rank-{rank}.json"


def generators_file(rank: int) -> str:
    """Where a rank keeps the states of its random number generators."""
    return f"rng-{rank}.pt"


def read_entries(entries: list[Mapping[str, Any]]) -> tuple[FileEntry, ...]:
    """File entries from JSON."""
    return tuple(FileEntry(**entry) for entry in entries)
