"""The directory of checkpoints, and the step in it that DCP's ``checkpoint_id`` names."""

from __future__ import annotations

import os

from sparkdl_runner.base.filesystem import StorageOptions
from sparkdl_runner.checkpoint.directory.manifest import Name
from sparkdl_runner.checkpoint.directory.storage import directory_url, open_storage


class StepDirectory:
    """The base of ``DcpWriter`` and ``DcpReader``. Its arguments are documented there."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        storage_options: StorageOptions | None,
        retry_seconds: float = 60.0,
    ) -> None:
        self._storage = open_storage(directory_url(directory), storage_options, retry_seconds)
        self._step: int | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Takes the step of the next call: ``step-N``, or a path or URL that ends so.

        Raises:
            ValueError: It names no step.
        """
        if checkpoint_id is not None and not self.validate_checkpoint_id(checkpoint_id):
            raise ValueError(
                f"The checkpoint_id {os.fspath(checkpoint_id)!r} names no step; expected one that "
                "ends in step-N, such as checkpoint_id='step-100'."
            )
        self._step = None if checkpoint_id is None else _step_of(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it names a step."""
        return _step_of(checkpoint_id) is not None


def _step_of(checkpoint_id: str | os.PathLike[str]) -> int | None:
    name = Name.parse(os.fspath(checkpoint_id).rstrip("/").rpartition("/")[2] + "/attempt-0")
    return None if name is None else name.step
