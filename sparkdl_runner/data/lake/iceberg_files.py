"""Opens the metadata of Iceberg tables on a local disk, whatever characters their paths have.

Its class is named in a property of the table, ``py-io-impl``; only pyiceberg imports this file.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from sparkdl_runner.data.lake.paths import bare


class LocalFileIO(PyArrowFileIO):
    """pyiceberg's own reads a path up to its first ``#`` or ``?``, as in the URL of a web page."""

    @staticmethod
    def parse_location(location: str, properties: Any = None) -> tuple[str, str, str]:
        """Scheme, host and path."""
        if location.startswith(("file:/", "/")):
            return "file", "", f"/{bare(location)}"
        return PyArrowFileIO.parse_location(location, properties or {})
