"""Reads images, texts or tables with one loader, epoch by epoch, or converts them for it.

All give batches of the same size in random order, images as uint8 ``[batch, size, size, 3]``. What
is of other formats runs in the environment of the peers.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.ranks.stages import serve

_Request = dict[str, Any]
_Stages = Iterator[Iterable[int]]
_SHUFFLED = 1000
"""Rows among which Hugging Face's stream takes the next, as its documentation does."""


def _ours(request: _Request) -> _Stages:
    import pandas  # noqa: F401  A training has imported it, through MLflow.
    import torch  # noqa: F401
    from PIL import Image

    import sparkdl_runner.data.batches.loader  # noqa: F401
    from sparkdl_runner.data import make_spark_converter

    Image.preinit()
    yield ()
    options: dict[str, Any] = {"storage_options": request.get("storage_options")}
    arguments = {"num_epochs": 1, "tail": "uneven", **options, **request["arguments"]}
    converter = make_spark_converter(request["url"], **options)
    with converter.make_torch_dataloader(**arguments) as loader:
        yield ()
        for epoch in range(request["epochs"]):
            loader.set_epoch(epoch)
            yield map(_rows, loader)


def _files(request: _Request) -> _Stages:
    """One file for each image, as torchvision's ImageFolder has them."""
    from torch.utils.data import DataLoader, Dataset

    class Files(Dataset):
        def __len__(self) -> int:
            return int(request["rows"])

        def __getitem__(self, row: int) -> dict[str, Any]:
            encoded = _content(f"{request['url']}/{row:06}.jpg")
            return _decoded(request["size"], {"image": encoded, "label": row})

    yield ()
    yield from _epochs(request, DataLoader(Files(), shuffle=True, **_options(request)))


def _mosaic(request: _Request) -> _Stages:
    operators = _torchvisions_operators()  # noqa: F841  They go with it.
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    class Samples(StreamingDataset):
        def __getitem__(self, row: int) -> dict[str, Any]:
            return _decoded(request["size"], super().__getitem__(row))

    yield ()
    is_far = request["url"].startswith("s3:")
    dataset = (Samples if request["size"] else StreamingDataset)(
        remote=request["url"] if is_far else None,
        local=request["cache"] if is_far else request["url"],
        batch_size=request["batch_size"],
        shuffle=True,
    )
    yield from _epochs(request, DataLoader(dataset, **_options(request)))


def _litdata(request: _Request) -> _Stages:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It would refuse the server here, which has no TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    yield ()
    transform = partial(_decoded, request["size"]) if request["size"] else None
    dataset = StreamingDataset(
        request["url"], cache_dir=request["cache"], shuffle=True, transform=transform
    )
    yield from _epochs(request, StreamingDataLoader(dataset, **_options(request)))


def _hugging_face(request: _Request) -> _Stages:
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    yield ()
    stream = load_dataset(request["url"], split="train", streaming=True)
    stream = stream.shuffle(seed=0, buffer_size=_SHUFFLED)
    yield from _epochs(request, DataLoader(stream, **_options(request)))


def _torchdata(request: _Request) -> _Stages:
    from datasets import load_dataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    yield ()
    rows = load_dataset(request["url"], split="train", cache_dir=request["cache"])
    yield from _epochs(request, StatefulDataLoader(rows, shuffle=True, **_options(request)))


def _options(request: _Request) -> dict[str, Any]:
    return {"batch_size": request["batch_size"], "num_workers": request["workers"]}


def _epochs(request: _Request, loader: Any) -> _Stages:
    yield ()
    for _ in range(request["epochs"]):
        yield map(_rows, loader)


def _rows(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))


def _decoded(size: int, sample: dict[str, Any]) -> dict[str, Any]:
    """A sample with its image decoded, by a function written by hand."""
    import numpy as np
    import torch
    from PIL import Image

    image = Image.open(io.BytesIO(sample["image"])).convert("RGB")
    pixels = np.array(image.resize((size, size), Image.Resampling.BILINEAR))
    return {**sample, "image": torch.from_numpy(pixels)}


def _content(url: str) -> bytes:
    if not url.startswith("s3://"):
        return Path(url).read_bytes()
    bucket, _, key = url.removeprefix("s3://").partition("/")
    content: bytes = _s3(os.getpid()).get_object(Bucket=bucket, Key=key)["Body"].read()
    return content


@cache
def _s3(process: int) -> Any:
    """A client for each process: they are not made to be forked."""
    import boto3

    return boto3.client("s3")


def _to_ours(request: _Request) -> _Stages:
    from pyspark.sql import functions

    from sparkdl_runner.data import write_conversion
    from sparkdl_runner.jobs.spark.session import start_spark

    spark = start_spark("conversion", slots=request["workers"])
    yield ()
    files = spark.read.format("binaryFile").load(request["source"])
    label = functions.regexp_extract("path", r"(\d+)\.jpg$", 1).cast("int")
    images = files.select(files.content.alias("image"), label.alias("label"))
    group_bytes = request["chunk_bytes"]
    yield [len(write_conversion(images, request["into"], parquet_row_group_size_bytes=group_bytes))]
    spark.stop()


def _to_mosaic(request: _Request) -> _Stages:
    operators = _torchvisions_operators()  # noqa: F841
    from streaming import MDSWriter

    yield ()
    columns = {"text": "str"} if request["size"] is None else {"image": "bytes", "label": "int"}
    chunk_bytes = request["chunk_bytes"]
    with MDSWriter(out=request["into"], columns=columns, size_limit=chunk_bytes) as writer:
        for path in _sources(request):
            for sample in _samples(path):
                writer.write(sample)
    yield [request["rows"]]


def _to_litdata(request: _Request) -> _Stages:
    from litdata import optimize

    yield ()
    options = {"chunk_bytes": request["chunk_bytes"], "num_workers": request["workers"]}
    optimize(_samples, _sources(request), request["into"], **options, verbose=False)
    yield [request["rows"]]


def _sources(request: _Request) -> list[str]:
    return sorted(str(path) for path in Path(request["source"]).iterdir())


def _samples(path: str) -> Iterator[dict[str, Any]]:
    """The image of a file, or the rows of a Parquet file."""
    if path.endswith(".jpg"):
        yield {"image": Path(path).read_bytes(), "label": int(Path(path).stem)}
        return
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _torchvisions_operators() -> Any:
    """Lets torchvision be imported beside a torch without CUDA, where its library does not load."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


if __name__ == "__main__":
    readers = (_ours, _files, _mosaic, _litdata, _hugging_face, _torchdata)
    serve({one.__name__[1:]: one for one in (*readers, _to_ours, _to_mosaic, _to_litdata)})
