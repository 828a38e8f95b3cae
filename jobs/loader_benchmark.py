"""Loaders beside each other: rows/s, MB/s and memory of every engine, on the same files.

Every measurement is a set of fresh processes, one per rank, which start reading together; engines
take turns within each round, and medians over the rounds are reported. Behind
``jobs/benchmark.py loader``, and by itself:

    python jobs/loader_benchmark.py --tables array scalar --rounds 5 --output loader.json
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("arrow", "petastorm_batched", "petastorm_row", "naive", "decode_only")
SCALARS = [f"c{index:02}" for index in range(33)]
IMAGE_SIZE = (64, 64)
_FILES = 8
_GROUP_BYTES = 32 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=[*ENGINES])
    parser.add_argument("--rows", type=int, default=2_000_000, help="images: a hundredth of it")
    parser.add_argument("--row-loader-rows", type=int, default=50_000, help="petastorm_row stops")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers-count", type=int, default=2)
    parser.add_argument("--shuffling-queue-capacity", type=int, default=50_000)
    parser.add_argument("--data", default=None, help="directory for the files; kept if given")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmark-loader.json"), help="the JSON file"
    )
    parser.add_argument("--measure", default=None, help=argparse.SUPPRESS)


def add_parser(benchmarks: Any) -> None:
    """Adds this benchmark to the command line."""
    parser = benchmarks.add_parser("loader", help="batches, beside petastorm's loaders")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark; returns the exit status."""
    if arguments.measure is not None:
        return _measure(json.loads(arguments.measure))
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.data or temporary)
        results = []
        for table in arguments.tables:
            rows = max(arguments.rows // (100 if table == "image" else 1), _FILES)
            _write(table, directory / f"{table}-{rows}", rows)
            results += _table(arguments, table, directory / f"{table}-{rows}")
    report = {
        "command": "jobs/benchmark.py loader",
        "cores": len(os.sched_getaffinity(0)),
        "settings": {
            key: value for key, value in vars(arguments).items() if key in _REPORTED_SETTINGS
        },
        "results": results,
    }
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    _show(results)
    print(f"\nWritten to {arguments.output}")
    return 0


def _show(results: list[dict[str, Any]]) -> None:
    """Prints the table for a person."""
    head = ("rows/s", "MB/s", "peak MB", "petastorm Batched", "row loader", "decode only")
    print(f"\n{'':<28}{head[0]:>12}{head[1]:>8}{head[2]:>9}   times {', '.join(head[3:])}")
    for one in results:
        name = f"{one['table']}: {one['engine']}"
        if "skipped" in one:
            print(f"{name:<28} unavailable: {one['skipped']}")
            continue
        times = (
            one.get(f"times_{of}") for of in ("petastorm_batched", "petastorm_row", "decode_only")
        )
        ratios = ", ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in times)
        print(
            f"{name:<28}{one['rows_per_second']:>12,}{one['megabytes_per_second']:>8,.0f}"
            f"{one['peak_rss_megabytes']:>9,}   {ratios}"
        )


_REPORTED_SETTINGS = (
    "rows",
    "batch_size",
    "ranks",
    "rounds",
    "epochs",
    "workers_count",
    "shuffling_queue_capacity",
)


def _table(arguments: argparse.Namespace, table: str, directory: Path) -> list[dict[str, Any]]:
    engines = list(arguments.engines)
    if table == "scalar" and "arrow" in engines:
        engines.insert(engines.index("arrow") + 1, "arrow_matrix")
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    skipped: dict[str, str] = {}
    for round_number in range(arguments.rounds):
        for engine in engines:
            if engine in skipped:
                continue
            try:
                measured = _ranks(arguments, table, engine, directory)
            except _UnavailableError as error:
                skipped[engine] = str(error)
                continue
            found[engine].append(measured)
            print(
                f"{table}, round {round_number + 1}, {engine}: "
                f"{measured['rows_per_second']:,.0f} rows/s",
                file=sys.stderr,
            )
    row_bytes = TABLES[table][1]
    results = []
    for engine, rounds in found.items():
        entry: dict[str, Any] = {"table": table, "engine": engine}
        if engine in skipped:
            results.append({**entry, "skipped": skipped[engine]})
            continue
        # Beside the time on the wall, the time on the processors: what else runs on the machine
        # changes the first far more than the second.
        per_cpu = statistics.median(one["rows_per_cpu_second"] for one in rounds)
        speed = statistics.median(one["rows_per_second"] for one in rounds)
        entry |= {
            "rows_per_second": round(speed),
            "rows_per_cpu_second": round(per_cpu),
            "megabytes_per_second": round(speed * row_bytes / 1e6, 1),
            "first_batch_seconds": round(
                statistics.median(one["first_batch_seconds"] for one in rounds), 3
            ),
            "peak_rss_megabytes": round(statistics.median(one["peak_rss"] for one in rounds) / 1e6),
            "all_rows_per_second": [round(one["rows_per_second"]) for one in rounds],
        }
        # Of the same round, as the machine may be busier in one round than in the next.
        for other in ("petastorm_batched", "petastorm_row", "decode_only"):
            if other == engine or not found.get(other):
                continue
            for key, name in (("rows_per_second", "times"), ("rows_per_cpu_second", "cpu_times")):
                ratios = [
                    mine[key] / theirs[key]
                    for mine, theirs in zip(rounds, found[other], strict=True)
                ]
                entry[f"{name}_{other}"] = round(statistics.median(ratios), 2)
        results.append(entry)
    return results


class _UnavailableError(Exception):
    """An engine that cannot run here, and why."""


def _ranks(
    arguments: argparse.Namespace, table: str, engine: str, directory: Path
) -> dict[str, float]:
    """One measurement: all ranks start together, each a process of its own."""
    processes = []
    for rank in range(arguments.ranks):
        request = {
            "table": table,
            "engine": engine,
            "directory": str(directory),
            "rank": rank,
            "ranks": arguments.ranks,
            "batch_size": arguments.batch_size,
            "epochs": arguments.epochs,
            "workers_count": arguments.workers_count,
            "capacity": arguments.shuffling_queue_capacity,
            "row_limit": arguments.row_loader_rows if engine == "petastorm_row" else None,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, str(Path(__file__)), "--measure", json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for process in processes:
            line = process.stdout.readline() if process.stdout else ""
            if line.startswith("unavailable"):
                raise _UnavailableError(line.partition(" ")[2].strip())
            if line != "ready\n":
                raise RuntimeError(f"{engine}: {process.communicate()[1][-2000:]}")
        for process in processes:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        answers = []
        for process in processes:
            output, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{engine}: {errors[-2000:]}")
            answers.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return {
        "rows_per_second": sum(one["rows"] for one in answers)
        / max(one["seconds"] for one in answers),
        "rows_per_cpu_second": sum(one["rows"] for one in answers)
        / sum(one["cpu_seconds"] for one in answers),
        "first_batch_seconds": max(one["first_batch_seconds"] for one in answers),
        "peak_rss": max(one["peak_rss"] for one in answers),
    }


def _measure(request: dict[str, Any]) -> int:
    """In a rank's process: reads its shard once, and prints how long that took."""
    try:
        batches = _READERS[request["engine"]](request)
    except ImportError as error:
        print(f"unavailable {error}", flush=True)
        return 0
    print("ready", flush=True)
    sys.stdin.readline()
    rows, first = 0, None
    began, cpu_began = time.perf_counter(), time.process_time()
    for count in batches():
        if first is None:
            first = time.perf_counter() - began
        rows += count
        if request["row_limit"] is not None and rows >= request["row_limit"]:
            break
    seconds = time.perf_counter() - began
    answer = {
        "rows": rows,
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu_began,
        "first_batch_seconds": first or seconds,
        "peak_rss": _peak_rss(),
    }
    print(json.dumps(answer), flush=True)
    os._exit(0)  # a reader that was left in the middle may take long to stop its threads


def _peak_rss() -> int:
    """Bytes; unlike getrusage's, of this program alone and not of what it was started from."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


_Reader = Callable[[dict[str, Any]], Callable[[], Iterator[int]]]


def _arrow(request: dict[str, Any], **more: Any) -> Callable[[], Iterator[int]]:
    import pyarrow.fs

    from sparkdl_runner.data.loader import ArrowLoader
    from sparkdl_runner.data.manifest import Manifest

    directory, filesystem = request["directory"], pyarrow.fs.LocalFileSystem()
    if request["table"] == "image":
        more["images"] = {"image": IMAGE_SIZE}

    def batches() -> Iterator[int]:
        with ArrowLoader(
            Manifest.read(filesystem, directory),
            filesystem,
            directory,
            batch_size=request["batch_size"],
            cur_shard=request["rank"],
            shard_count=request["ranks"],
            num_epochs=request["epochs"],
            workers_count=request["workers_count"],
            tail="uneven",
            **more,
        ) as loader:
            for batch in loader:
                yield len(next(iter(batch.values())))

    return batches


def _arrow_matrix(request: dict[str, Any]) -> Callable[[], Iterator[int]]:
    return _arrow(request, feature_cols=SCALARS)


def _petastorm(request: dict[str, Any], *, by_row: bool) -> Callable[[], Iterator[int]]:
    from petastorm import TransformSpec, make_batch_reader
    from petastorm.pytorch import BatchedDataLoader, DataLoader

    directory = Path(request["directory"])
    transform = None
    if request["table"] == "vector":  # petastorm's converter stores ML vectors as arrays
        directory = directory.with_name(directory.name.replace("vector", "vector_as_array"))
    if request["table"] == "image":

        def decode(frame: Any) -> Any:
            frame["image"] = frame["image"].map(_pillow)
            return frame

        field = ("image", np.uint8, (*IMAGE_SIZE, 3), False)
        transform = TransformSpec(decode, edit_fields=[field])
    urls = [f"file://{path}" for path in sorted(directory.glob("*.parquet"))]
    loader_class = DataLoader if by_row else BatchedDataLoader

    def batches() -> Iterator[int]:
        reader = make_batch_reader(
            urls,
            cur_shard=request["rank"],
            shard_count=request["ranks"],
            num_epochs=request["epochs"],
            workers_count=request["workers_count"],
            transform_spec=transform,
        )
        with loader_class(
            reader,
            batch_size=request["batch_size"],
            shuffling_queue_capacity=request["capacity"],
        ) as loader:
            for batch in loader:
                yield len(next(iter(batch.values())))

    return batches


def _petastorm_batched(request: dict[str, Any]) -> Callable[[], Iterator[int]]:
    return _petastorm(request, by_row=False)


def _petastorm_row(request: dict[str, Any]) -> Callable[[], Iterator[int]]:
    return _petastorm(request, by_row=True)


def _shard(request: dict[str, Any]) -> list[tuple[Path, int]]:
    import pyarrow.parquet as pq

    groups = [
        (path, group)
        for path in sorted(Path(request["directory"]).glob("*.parquet"))
        for group in range(pq.ParquetFile(path).num_row_groups)
    ]
    return groups[request["rank"] :: request["ranks"]]


def _naive(request: dict[str, Any]) -> Callable[[], Iterator[int]]:
    """What one writes by hand: a row group, a random permutation, slices."""
    import pyarrow.parquet as pq
    import torch

    def batches() -> Iterator[int]:
        for _ in range(request["epochs"]):
            groups = _shard(request)
            for place in torch.randperm(len(groups)).tolist():
                path, group = groups[place]
                table = pq.ParquetFile(path).read_row_group(group)
                order = torch.randperm(table.num_rows)
                tensors = {
                    name: torch.index_select(torch.from_numpy(_numbers(table, name)), 0, order)
                    for name in table.column_names
                }
                for start in range(0, table.num_rows, request["batch_size"]):
                    batch = {
                        name: tensor[start : start + request["batch_size"]]
                        for name, tensor in tensors.items()
                    }
                    yield len(next(iter(batch.values())))

    return batches


def _numbers(table: Any, name: str) -> Any:
    column = table.column(name).combine_chunks()
    kind = str(column.type)
    if kind.startswith("struct"):
        column = column.field("values")
        kind = str(column.type)
    if kind.startswith("list"):
        return column.flatten().to_numpy().reshape(len(column), -1)
    if kind == "binary":
        return np.stack([_pillow(value.as_py()) for value in column])
    return column.to_numpy()


def _decode_only(request: dict[str, Any]) -> Callable[[], Iterator[int]]:
    """Arrow's decoding, in as many threads, of which nothing is made; images by Pillow."""
    import pyarrow.parquet as pq

    def read(place: tuple[Path, int]) -> int:
        table = pq.ParquetFile(place[0]).read_row_group(place[1], use_threads=False)
        if request["table"] == "image":
            for value in table.column("image"):
                _pillow(value.as_py())
        return int(table.num_rows)

    def batches() -> Iterator[int]:
        with ThreadPoolExecutor(request["workers_count"]) as pool:
            for _ in range(request["epochs"]):
                yield from pool.map(read, _shard(request))

    return batches


def _pillow(encoded: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))


_READERS: dict[str, _Reader] = {
    "arrow": _arrow,
    "arrow_matrix": _arrow_matrix,
    "petastorm_batched": _petastorm_batched,
    "petastorm_row": _petastorm_row,
    "naive": _naive,
    "decode_only": _decode_only,
}


def _arrays(random: np.random.Generator, rows: int, width: int = 64) -> Any:
    import pyarrow as pa

    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
    values = pa.array(random.random(rows * width, dtype=np.float32))
    return pa.ListArray.from_arrays(offsets, values)


def _array_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {"x": _arrays(random, rows)}


def _scalar_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    columns = {name: random.random(rows, dtype=np.float32) for name in SCALARS}
    return {**columns, "label": random.integers(0, 10, rows)}


def _vector_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    """ML vectors as Spark stores them, all dense."""
    import pyarrow as pa

    nothing = pa.nulls(rows, pa.list_(pa.int32()))
    fields = {
        "type": pa.array(np.ones(rows, dtype=np.int8)),
        "size": pa.nulls(rows, pa.int32()),
        "indices": nothing,
        "values": _arrays(random, rows, 28).cast(pa.list_(pa.float64())),
    }
    return {"x": pa.StructArray.from_arrays(list(fields.values()), list(fields))}


def _vector_array_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {"x": _arrays(random, rows, 28)}


def _image_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    """JPEGs of coloured noise, smoothed, so that they compress as photographs do."""
    from PIL import Image

    encoded = []
    for _ in range(rows):
        small = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize(IMAGE_SIZE[::-1], Image.Resampling.BICUBIC)
        stream = io.BytesIO()
        image.save(stream, format="JPEG", quality=90)
        encoded.append(stream.getvalue())
    return {"image": encoded, "label": random.integers(0, 10, rows)}


TABLES: dict[str, tuple[Callable[[np.random.Generator, int], dict[str, Any]], int]] = {
    "array": (_array_table, 256),
    "scalar": (_scalar_table, 33 * 4 + 8),
    "vector": (_vector_table, 28 * 8),
    "image": (_image_table, IMAGE_SIZE[0] * IMAGE_SIZE[1] * 3 + 8),
}
"""By name: what makes the columns, and the bytes of a row in a batch."""


def _even(rows: int, most: int) -> int:
    """Rows of equal row groups that have ``most`` or fewer."""
    groups = -(-rows // most)
    return -(-rows // groups)


def _write(table: str, directory: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.fs
    import pyarrow.parquet as pq

    from sparkdl_runner.data.describe import describe_parquet
    from sparkdl_runner.data.manifest import MANIFEST_NAME

    if (directory / MANIFEST_NAME).exists():
        return
    make, row_bytes = TABLES.get(table, (_vector_array_table, 112))
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    names = []
    for number in range(_FILES):
        count = rows * (number + 1) // _FILES - rows * number // _FILES
        names.append(f"part-{number:05}.parquet")
        pq.write_table(
            pa.table(make(random, count)),
            directory / names[-1],
            compression="none",
            row_group_size=_even(count, _GROUP_BYTES // row_bytes),
        )
    filesystem = pyarrow.fs.LocalFileSystem()
    describe_parquet(filesystem, str(directory), names).write(filesystem, str(directory))
    if table == "vector":
        _write("vector_as_array", directory.with_name(f"vector_as_array-{rows}"), rows)


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(_parser)
    raise SystemExit(run(_parser.parse_args()))
