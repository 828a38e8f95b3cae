"""The errors of data sets and conversions."""

from __future__ import annotations

from sparkdl_runner.errors import RunnerError


class DatasetError(RunnerError):
    """The files of a data set are not what its manifest, or the caller, says they are."""


class ConversionError(DatasetError):
    """Spark could not write the files; nothing of them is left to be read by mistake."""


class NullSplitError(ConversionError):
    """The column by which rows are told apart holds a null."""


class ChangedFileError(DatasetError):
    """A file is not the one that was converted."""


class BadRowError(DatasetError):
    """One row cannot be decoded.

    Attributes:
        row: Its number among the rows that were decoded together.
        problem: What is wrong with it.
        remedy: What to do.
    """

    def __init__(self, row: int, problem: str, remedy: str) -> None:
        super().__init__(f"row {row} {problem}")
        self.row = row
        self.problem = problem
        self.remedy = remedy


class StorageError(DatasetError):
    """A storage does not give a file, for a reason of its own: the file may well be whole."""


class NoSharedFolderError(DatasetError, ValueError):
    """Executors and ranks share no folder, as far as is known, in which a conversion could lie."""

    def __init__(self, remedy: str) -> None:
        super().__init__(
            f"The executors of this cluster need a directory that they share with the ranks: "
            f"{remedy}, such as s3a://bucket/cache, "
            "abfss://container@account.dfs.core.windows.net/cache, "
            "dbfs:/Volumes/catalog/schema/volume or file:///mnt/shared/cache."
        )


class NoManifestError(DatasetError, FileNotFoundError):
    """A directory has no manifest: no conversion, or one that never finished."""


class StateError(DatasetError, ValueError):
    """A loader was given the state of another data set, seed, order or batch size."""
