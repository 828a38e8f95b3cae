"""``conversions list``, ``sweep`` and ``delete``: what a cache directory keeps, and for whom."""

from __future__ import annotations

import argparse
import time
from typing import Any

from sparkdl_runner.data.dataset.leftovers import sweep_leftovers
from sparkdl_runner.data.dataset.place import directory_url
from sparkdl_runner.data.keep.kept import (
    FILES,
    KEPT_PREFIX,
    Kept,
    delete_kept,
    list_kept,
    sweep_kept,
)
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.filesystem import redact

_PLACE = "the cache directory, by path or URL: petastorm.spark.converter.parentCacheDirUrl"


def add_parser(subparsers: Any) -> None:
    """Adds ``conversions``."""
    summary = "List the conversions that a cache directory keeps, or delete those of no more use."
    parser = subparsers.add_parser("conversions", help=summary, description=summary)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    text = "list conversions that were made with keep_hours: rows, size, age, source and leases"
    one = actions.add_parser("list", help=text, description=text)
    one.add_argument("url", help=_PLACE)
    one.set_defaults(run=_list)
    text = "delete what has no lease any more, and what processes that ended have left"
    one = actions.add_parser("sweep", help=text, description=text)
    one.add_argument("url", help=_PLACE)
    one.set_defaults(run=_sweep)
    text = "delete one conversion; exit code 1 if somebody has a lease on it"
    one = actions.add_parser("delete", help=text, description=text)
    one.add_argument("url", help="the conversion, as list shows it")
    one.add_argument("--in-use", action="store_true", help="also if somebody has a lease on it")
    one.set_defaults(run=_delete)


def _list(arguments: argparse.Namespace) -> None:
    found = _reading(lambda: list_kept(directory_url(arguments.url, None)), arguments.url)
    rows: list[tuple[str, ...]] = [("conversion", "rows", "size", "age", "leases", "source")]
    rows += [_row(one) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]).rstrip())


def _row(one: Kept) -> tuple[str, ...]:
    age = "?" if one.about is None else _duration(time.time() - one.about.created_unix_seconds)
    return (
        redact(one.url),
        "unfinished" if one.rows is None else f"{one.rows:,}",
        "" if one.size_bytes is None else f"{one.size_bytes / 1e6:,.1f} MB",
        age,
        "; ".join(
            f"{lease.user}@{lease.hostname} for {_duration(lease.ends_unix_seconds - time.time())}"
            for lease in one.users
        )
        or "none",
        "?" if one.about is None else f"{one.about.source}, by {one.about.user}",
    )


def _duration(seconds: float) -> str:
    hours = seconds / 3600
    return (
        f"{seconds / 60:.0f} min"
        if hours < 1
        else f"{hours:.0f} h"
        if hours < 48
        else (f"{hours / 24:.0f} days")
    )


def _sweep(arguments: argparse.Namespace) -> None:
    url = _reading(lambda: directory_url(arguments.url, None), arguments.url)
    deleted = [*_reading(lambda: sweep_kept(url), url), *sweep_leftovers(url)]
    for one in deleted:
        print(f"deleted {redact(one)}")
    print(f"{len(deleted)} deleted; {len(list_kept(url))} kept conversions are in use or wanted.")


def _delete(arguments: argparse.Namespace) -> int:
    url = _reading(lambda: directory_url(arguments.url, None), arguments.url)
    url = url.removesuffix(f"/{FILES}")
    parent, _, name = url.rpartition("/")
    found = [one for one in _reading(lambda: list_kept(parent), url) if one.url == url]
    if not name.startswith(KEPT_PREFIX) or not found:
        raise ConfigError(f"{redact(url)} is no kept conversion; list shows those of a directory.")
    [one] = found
    if one.users and not arguments.in_use:
        print(f"{redact(url)} is in use: {_row(one)[4]}. Give --in-use to delete it all the same.")
        return 1
    if not delete_kept(url, in_use=True):
        return 1
    print(f"deleted {redact(url)}")
    return 0


def _reading(action: Any, url: str) -> Any:
    try:
        return action()
    except (OSError, ValueError, TypeError, ImportError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"cannot read {redact(url)}: {told.rstrip('.')}.") from None
