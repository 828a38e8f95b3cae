"""``checkpoints ls`` lists checkpoints; ``checkpoints verify`` compares their checksums."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from sparkdl_runner.base.filesystem import join_url, local_path, redact
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import (
    Manifest,
    Name,
    problems_of,
    read_manifest,
)
from sparkdl_runner.checkpoint.directory.storage import Storage, directory_url, open_storage
from sparkdl_runner.checkpoint.errors import DamageError
from sparkdl_runner.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """Adds ``checkpoints``."""
    summary = "List checkpoints, or verify every byte of them."
    parser = subparsers.add_parser(
        "checkpoints",
        help=summary,
        description=summary,
        epilog="for example:\n"
        "  sparkdl-runner checkpoints ls /data/checkpoints\n"
        "  sparkdl-runner checkpoints verify s3a://bucket/checkpoints\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    place = "a folder of checkpoints, or one above several, by path or URL"
    for name, action, text in (
        ("ls", _ls, "list what was committed, oldest first"),
        ("verify", _verify, "read all files again; exit code 1 if one is not what was written"),
    ):
        action_parser = actions.add_parser(name, help=text, description=text)
        action_parser.add_argument("url", help=place)
        action_parser.set_defaults(run=action)


def _ls(arguments: argparse.Namespace) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    rows = [("checkpoint", "epoch", "ranks", "committed (UTC)", "size", "metrics")]
    for storage, name, shown in _checkpoints(arguments.url):
        try:
            manifest = read_manifest(storage, name)
            rows.append((shown, *_described(manifest)))
            size = sum(entry.size_bytes for entry in manifest.files)
            facts = ("epoch", "world_size", "created", "metrics")
            known = {fact: getattr(manifest, fact) for fact in facts}
            found.append({"checkpoint": shown, "size_bytes": size, **known})
        except DamageError as problem:
            found.append({"checkpoint": shown, "problems": [str(problem)]})
            rows.append((shown, "", "", "", "", f"damaged: {problem}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]).rstrip())
    return {"checkpoints": found}


def _verify(arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    for storage, name, shown in _checkpoints(arguments.url):
        found[shown] = problems = problems_of(storage, name)
        print(f"{shown}: {'damaged' if problems else 'ok'}", flush=True)
        for problem in problems:
            print(f"  {problem}")
    if damaged := sum(map(bool, found.values())):
        print(
            f"{damaged} damaged: a training that is resumed passes over them, to the newest that "
            "is whole."
        )
    return {"exit_code": int(damaged > 0), "problems": found}


def _checkpoints(place: str) -> Iterator[tuple[Storage, Name, str]]:
    """All committed checkpoints below a folder: where each is, its name, and how to show it.

    Raises:
        ConfigError: There is none, or the place cannot be read.
    """
    try:
        url = directory_url(place)
        path = local_path(url)
        is_folder = path is None or os.path.isdir(path)
        names = open_storage(url).names() if is_folder else []
    except (OSError, ValueError, TypeError, ImportError) as error:
        reason = first_line(error).rstrip(".")
        raise ConfigError(f"cannot read {redact(place)}: {reason}.") from None
    if path is not None and not is_folder:
        state = "is a file" if os.path.exists(path) else "is not there"
        raise ConfigError(f"{path} {state}; it must be a folder of checkpoints.")
    # A folder may hold those of one training, or a folder for each of several.
    folders = sorted({_folder(name) for name in names if "step-" in name})
    found = False
    for folder in folders:
        storage = open_storage(join_url(url, folder) if folder else url)
        for name in sorted(committed(storage)):
            found = True
            yield storage, name, f"{folder}/{name}" if folder else str(name)
    if not found:
        raise ConfigError(f"there is no checkpoint in {path or redact(place)}.")


def _folder(name: str) -> str:
    parts = name.split("/")
    first = next((i for i, part in enumerate(parts) if part.startswith("step-")), 0)
    return "/".join(parts[:first])


def _described(manifest: Manifest) -> tuple[str, str, str, str, str]:
    size = sum(entry.size_bytes for entry in manifest.files)
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(manifest.metrics.items()))
    return (
        "" if manifest.epoch is None else str(manifest.epoch),
        str(manifest.world_size),
        manifest.created[:19].replace("T", " "),
        f"{size / 1e6:,.1f} MB",
        metrics,
    )
