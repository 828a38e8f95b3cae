"""Reads the metadata of an Iceberg table on a local disk, and nothing outside of its folder.

Its class is named in a property of the table, ``py-io-impl``; only pyiceberg imports this file.
"""

from __future__ import annotations

import os
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from sparkdl_runner.data.dataset.lake.iceberg import FOLDER, LISTED_FOLDER
from sparkdl_runner.data.dataset.lake.paths import OutsideError, bare


class LocalFileIO(PyArrowFileIO):
    """pyiceberg's own reads a path up to its first ``#`` or ``?``, as in the URL of a web page."""

    @staticmethod
    def parse_location(location: str, properties: Any = None) -> tuple[str, str, str]:
        """Scheme, host and path."""
        if location.startswith(("file:/", "/")):
            return "file", "", f"/{bare(location)}"
        return PyArrowFileIO.parse_location(location, properties or {})

    def new_input(self, location: str) -> Any:
        """A file to read.

        Raises:
            OutsideError: It is not in the table's folder.
        """
        folder, path = bare(self.properties[FOLDER]), bare(location)
        # A table that was moved as a whole still lists where it was.
        before = bare(self.properties.get(LISTED_FOLDER, folder))
        if path.startswith(f"{before}/"):
            path = folder + path.removeprefix(before)
        if not os.path.realpath(f"/{path}").startswith(os.path.realpath(f"/{folder}") + os.sep):
            raise OutsideError(location, is_whole=True)
        return super().new_input(f"file:///{path}")
