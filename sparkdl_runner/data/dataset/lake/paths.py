"""Paths as a table lists them: relative ones, and absolute ones that must lead into its folder."""

from __future__ import annotations

import re
from urllib.parse import unquote

from sparkdl_runner.base.filesystem import redact
from sparkdl_runner.base.foreign_file import is_inside

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*")


class OutsideError(ValueError):
    """A table lists a file that is not in its folder."""

    def __init__(self, path: str, *, is_whole: bool) -> None:
        where = "is not in its folder" if is_whole else "leads out of its folder"
        super().__init__(f"{redact(path)}, which {where}")
        self.is_whole = is_whole
        """Whether the path is a whole one, and no relative one that leads out."""


def path_in_table(listed: str, directory: str, *, is_encoded: bool = True) -> str:
    """A listed path, relative to the folder of its table.

    Args:
        listed: As Delta's log or Iceberg's manifests have it.
        directory: The table's folder, with or without a scheme.
        is_encoded: Whether it is as in Delta's log: encoded as in a URL, and usually relative.
            Iceberg's are neither.

    Raises:
        OutsideError: The file is elsewhere.
    """
    path = unquote(listed) if is_encoded else listed
    if not is_encoded or _SCHEME.match(path) or path.startswith("/"):
        root = f"{bare(directory)}/"
        if not bare(path).startswith(root):
            raise OutsideError(path, is_whole=True)
        path = bare(path).removeprefix(root)
    if not is_inside(path):
        raise OutsideError(path, is_whole=False)
    return path


def bare(url: str) -> str:
    """A path without scheme, by which the same file is known as ``s3:`` and as ``s3a:``."""
    return _SCHEME.sub("", url, count=1).strip("/")
