"""Reads one checkpoint, and compares each file with what was written before it is used."""

from __future__ import annotations

import io
from typing import Any

from sparkdl_runner.checkpoint.directory.files import read_entry
from sparkdl_runner.checkpoint.directory.manifest import Manifest
from sparkdl_runner.checkpoint.directory.state_files import SUFFIX, value_of
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import DamageError, UnreadableError

# The longest text of an error that may quote foreign content.
_MOST_CHARACTERS = 400
_NO_MEMORY = "can't allocate memory"


class CheckpointReader:
    """The files of one checkpoint.

    Args:
        storage: The directory of checkpoints.
        manifest: What the checkpoint holds.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self._entries = {entry.path: entry for entry in manifest.files}
        self._read: set[str] = set()

    def read(self, path: str, *, keep: bool = True) -> bytes:
        """The content of a file; without ``keep``, it is only compared.

        Raises:
            DamageError: It is not listed, or is not what was written.
        """
        if path not in self._entries:
            raise DamageError(f"{path} is not in its list of files")
        directory = str(self._manifest.name)
        content = read_entry(self._storage, directory, self._entries[path], keep=keep)
        self._read.add(path)
        return content

    def check(self, path: str) -> None:
        """Compares a file with what was written, if it was not read yet.

        Raises:
            DamageError: It differs.
        """
        if path not in self._read:
            self.read(path, keep=False)

    def load(self, state: str) -> Any:
        """A state with all tensors in host memory; None if the checkpoint does not hold it.

        A state of an older format is pickled, and loaded with ``weights_only``.

        Raises:
            DamageError: A file of it is not what was written, or not by this package.
        """
        import torch

        path = self._manifest.first_file(state)
        if path is None:
            return None
        try:
            if path.endswith(SUFFIX):
                return value_of(path, self.read)
            pickled = io.BytesIO(self.read(path))
            return torch.load(pickled, weights_only=True, map_location="cpu")
        except DamageError:
            raise
        except MemoryError as error:
            raise UnreadableError(f"there is no memory for {path}") from error
        except Exception as error:  # Its bytes are as they were written, but what wrote them?
            if _NO_MEMORY in str(error):  # torch raises a RuntimeError.
                raise UnreadableError(f"there is no memory for {path}") from error
            reason = f"{type(error).__name__}: {error!s:.{_MOST_CHARACTERS}}"
            raise DamageError(f"{path} cannot be loaded ({reason})") from error
