"""Which conversions this process has made, so that an equal DataFrame is converted once."""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from sparkdl_runner.base.filesystem import StorageOptions
from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.data.convert.sources import Request
from sparkdl_runner.data.errors import DatasetError

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(eq=False)
class _Entry(Generic[_Result]):
    request: Request
    future: Future[_Result] = field(default_factory=Future)
    holds: weakref.WeakSet[Hold[_Result]] = field(default_factory=weakref.WeakSet)


@dataclass(eq=False)
class Hold(Generic[_Result]):
    """One holder's claim to a conversion: its files stay while any claim exists.

    A holder that was garbage-collected, such as a notebook's variable that was assigned anew,
    has no claim any more.
    """

    entry: _Entry[_Result]

    @property
    def result(self) -> _Result:
        """The conversion; waits for it, and raises what it raised."""
        return self.entry.future.result()


class ConversionCache(Generic[_Result]):
    """Converts an equal DataFrame with equal settings once, also from several threads."""

    def __init__(self) -> None:
        self._entries: list[_Entry[_Result]] = []
        self._lock = threading.Lock()

    def get_or_convert(
        self,
        request: Request,
        convert: Callable[[], _Result],
        is_valid: Callable[[_Result], bool],
    ) -> Hold[_Result]:
        """Returns a claim to the earlier result for an equal request, or to that of ``convert()``.

        Args:
            request: What to convert, and all else that the result depends on.
            convert: Called without a lock; what it raises is raised to all who wait for it.
            is_valid: Whether an earlier result is still there.
        """
        with self._lock:
            entry = next((e for e in self._entries if e.request.is_equal(request)), None)
            if entry is not None:
                change = request.change()
                if change is not None:
                    _log.warning(change)
                done = entry.future.done()
                if change is not None or (done and not is_valid(entry.future.result())):
                    self._entries.remove(entry)
                    entry = None
            is_new = entry is None
            if entry is None:
                entry = _Entry(request)
                self._entries.append(entry)
            hold = Hold(entry)
            entry.holds.add(hold)
        if is_new:
            try:
                entry.future.set_result(convert())
            except BaseException as error:
                with self._lock:
                    self._forget(entry)
                entry.future.set_exception(error)
                raise
        entry.future.result()
        return hold

    def release(self, hold: Hold[_Result]) -> bool:
        """Gives up a claim; True if it was the last one, which ends the result."""
        with self._lock:
            hold.entry.holds.discard(hold)
            if hold.entry.holds:
                return False
            self._forget(hold.entry)
            return True

    def _forget(self, entry: _Entry[_Result]) -> None:
        if entry in self._entries:
            self._entries.remove(entry)


conversions: ConversionCache[SparkDatasetConverter] = ConversionCache()
"""The conversions of this process."""


def converted_once(
    request: Request,
    convert: Callable[[], SparkDatasetConverter],
    storage_options: StorageOptions | None,
) -> SparkDatasetConverter:
    """A converter of the files of an equal request, if they are still there, or of new ones.

    Its ``delete()`` deletes them once nobody else in this process has a converter of them.

    Args:
        request: See ``ConversionCache``, as for ``convert``.
        convert: Makes the files.
        storage_options: By which to look whether files are still there.
    """
    hold = conversions.get_or_convert(request, convert, lambda it: _is_there(it, storage_options))
    converter = copy.copy(hold.result)
    converter._file_urls = list(converter.file_urls)
    converter.dataframe, converter._delete = request.df, partial(_delete_if_last, hold)
    return converter


def _is_there(converter: SparkDatasetConverter, storage_options: StorageOptions | None) -> bool:
    try:
        converter.open(storage_options)
    except (OSError, DatasetError):
        return False
    return True


def _delete_if_last(hold: Hold[SparkDatasetConverter]) -> None:
    """Gives up a claim to a conversion, and deletes its files if it was the last claim."""
    if conversions.release(hold):
        hold.result.delete()
    else:
        _log.info("Others use %r, so its files stay until they delete it, too.", hold.result)
