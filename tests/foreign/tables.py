"""Compares files and tables of other projects, value by value, with what other readers say.

python -m foreign.tables FOLDER…: repositories of test files, such as apache/parquet-testing,
apache/arrow-testing, duckdb/duckdb, delta-io/delta-rs, delta-io/delta and duckdb/duckdb-iceberg,
which nothing here downloads. Each Parquet file, Delta table and Iceberg table inside is read in a
process of its own: one that aborts or hangs ends nothing else.

Exit codes: 0 nothing is wrong, bare, aborting or hanging, 1 something is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from foreign.table_rows import READERS, Columns, ours

SECONDS = 120
_MOST_BYTES = 12 << 30
"""What a process may take: a file may lie about its sizes."""
_PRELOADED = (
    "sparkdl_runner.data.batches.loader",
    "sparkdl_runner.data.convert.converter",
    "sparkdl_runner.data.convert.existing",
    "torch",
    "duckdb",
    "deltalake",
    "pyiceberg.table",
)
"""Modules of the process that those are forked from."""
BAD = ("wrong", "bare error", "nameless", "abort", "hang")
_OWN = f"{os.sep}sparkdl_runner{os.sep}"


def sources(folder: Path) -> Iterator[tuple[str, Path]]:
    """The Parquet files and tables in a folder, each with its kind; not the files of tables."""
    tables: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if any(table in path.parents for table in tables) or not path.is_dir():
            continue
        kind = "delta" if (path / "_delta_log").is_dir() else None
        if any(path.glob("metadata/*.metadata.json")):
            kind = "iceberg"
        if kind is not None:
            tables.append(path)
            yield kind, path
    for path in sorted(folder.rglob("*.parq*")):
        if path.is_file() and not any(table in path.parents for table in tables):
            yield "parquet", path


def outcome(kind: str, path: Path) -> tuple[str, str]:
    """How reading ended, in a process of its own, and what there is to say of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *_PRELOADED])
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        child = context.Process(target=_compare, args=(kind, str(path), folder, sender))
        child.start()
        sender.close()
        try:
            if not receiver.poll(SECONDS):
                return "hang", f"no answer in {SECONDS} s"
            how, words = receiver.recv()
            return how, words.replace(folder, "…")
        except EOFError:
            child.join()
            return "abort", f"exit code {child.exitcode}"
        finally:
            child.kill()
            child.join()
            receiver.close()


def _compare(kind: str, path: str, folder: str, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if kind == "parquet":  # A folder of this file alone, with the ending that readers look for.
        shutil.copy(path, Path(folder, Path(path).stem + ".parquet"))
        path = folder
    sender.send(_outcome(kind, path))


def _outcome(kind: str, path: str) -> tuple[str, str]:
    try:
        found, refused = ours(path)
    except Exception as error:
        return _kind_of(error, path, ""), _words(error)
    for name, error in refused.items():
        if (how := _kind_of(error, path, name)) != "refused":
            return how, f"column {name}: {_words(error)}"
    others: dict[str, Columns] = {}
    reasons = []
    for reader, read in READERS[kind].items():
        try:
            others[reader] = read(path, found)
        except Exception as error:
            reasons.append(f"{reader}: {_words(error)}")
    if found and not others:
        return "not compared", "; ".join(reasons)
    differences = {reader: difference(kind, found, other) for reader, other in others.items()}
    if found and None not in differences.values():
        return "wrong", "; ".join(f"{reader}: {words}" for reader, words in differences.items())
    unread = "; ".join(f"column {name}: {_words(error)}" for name, error in refused.items())
    told = "; ".join(f"{reader} differs: {words}" for reader, words in differences.items() if words)
    if not found and refused:
        return "refused", unread
    return ("equal in part" if refused else "equal"), "; ".join(filter(None, (unread, told)))


def difference(kind: str, found: Columns, other: Columns) -> str | None:
    """The first difference, in words. Rows of a table may come in any order."""
    if kind != "parquet":
        names = [name for name in found if name in other]
        rows, others = (
            Counter(zip(*(map(repr, one[name]) for name in names), strict=True))
            for one in (found, other)
        )
        if rows != others:
            return (
                f"rows {list((rows - others).items())[:2]} for {list((others - rows).items())[:2]}"
            )
    for name, values in found.items():
        if name not in other:
            return f"there is no column {name}"
        if len(values) != len(other[name]):
            return f"column {name}: {len(values)} rows for {len(other[name])}"
        if kind != "parquet":
            continue
        for at, (mine, theirs) in enumerate(zip(values, other[name], strict=True)):
            if mine != theirs:
                return f"column {name}, row {at}: {mine!r:.80} for {theirs!r:.80}"
    return None


def _kind_of(error: BaseException, path: str, column: str) -> str:
    """Whether an error is a refusal in a sentence of this package, which names what it is about."""
    raised = traceback.extract_tb(error.__traceback__)[-1].filename
    if _OWN not in raised or isinstance(error, (LookupError, AssertionError, ArithmeticError)):
        return "bare error"
    text = str(error)
    names = [column, Path(path).name, *(one.name for one in Path(path).rglob("*.parquet"))]
    return "refused" if any(name and name in text for name in names) else "nameless"


def _words(error: BaseException) -> str:
    """An error, where it was raised, and where this package was then."""
    frames = traceback.extract_tb(error.__traceback__)
    ours_of = [frame for frame in frames if _OWN in frame.filename]
    places = dict.fromkeys(
        f"{Path(f.filename).name}:{f.lineno}" for f in (*ours_of[-1:], frames[-1])
    )
    return f"{type(error).__name__}: {str(error)[:400]} ({', '.join(places)})"


def compare(folders: Iterable[Path], only: str = "") -> dict[str, Any]:
    """Reads all sources, prints what is not well, and returns how each ended."""
    found: dict[str, Any] = {}
    for folder in folders:
        begun = os.getcwd()
        os.chdir(folder)  # Iceberg's tables may name their files relative to the repository.
        try:
            for kind, path in sources(folder):
                name = str(path.relative_to(folder.parent))
                if only not in name:
                    continue
                how, words = outcome(kind, path)
                found[name] = {"kind": kind, "outcome": how, "words": words}
                if how in BAD:
                    print(f"{how}: {name}: {words}", flush=True)
        finally:
            os.chdir(begun)
        print(f"{folder.name}: {summary(found, folder.name)}", flush=True)
    return found


def summary(found: Mapping[str, Any], folder: str) -> str:
    """How many sources of a folder ended how."""
    some = [one for name, one in found.items() if name.startswith(f"{folder}/")]
    counts = Counter((one["kind"], one["outcome"]) for one in some)
    return ", ".join(f"{count} {kind} {how}" for (kind, how), count in sorted(counts.items()))


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m foreign.tables", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="", help="those whose path holds this text")
    parser.add_argument("--output", type=Path, help="a JSON file of all outcomes")
    arguments = parser.parse_args()
    found = compare([folder.resolve() for folder in arguments.folders], arguments.only)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1))
    counts = Counter(one["outcome"] for one in found.values())
    print(", ".join(f"{count} {how}" for how, count in counts.most_common()))
    return 1 if any(counts[how] for how in BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
