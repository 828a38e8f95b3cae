"""What can be wrong with a data set, said in one sentence each."""

from __future__ import annotations

from sparkdl_runner.errors import RunnerError


class DatasetError(RunnerError):
    """The files of a data set are not what its manifest, or the caller, says they are."""


class NoManifestError(DatasetError, FileNotFoundError):
    """A directory has no manifest: no conversion, or one that never finished."""


class StateError(DatasetError, ValueError):
    """A loader was given the state of another data set, seed, order or batch size."""
