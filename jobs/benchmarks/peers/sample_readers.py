"""Reads images, texts or tables with one loader, epoch by epoch, or converts them for it.

All give batches of the same size in random order, images as uint8 ``[batch, size, size, 3]``. What
is of other formats runs in the environment of the peers. All imports are made in the first stage.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
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

    decoded = _decoder(request)

    class Files(Dataset):
        def __len__(self) -> int:
            return int(request["rows"])

        def __getitem__(self, row: int) -> Any:
            encoded = Path(request["url"], f"{row:06}.jpg").read_bytes()
            return decoded({"image": encoded, "label": row})

    yield ()
    yield from _epochs(request, DataLoader, Files(), shuffle=True)


def _mosaic(request: _Request) -> _Stages:
    _define_torchvisions_operators()
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    decoded = _decoder(request)

    class Images(StreamingDataset):
        def __getitem__(self, row: int) -> Any:
            return decoded(super().__getitem__(row))

    yield ()
    is_far = request["url"].startswith("s3:")
    dataset = (Images if decoded else StreamingDataset)(
        remote=request["url"] if is_far else None,
        local=request["cache"] if is_far else request["url"],
        batch_size=request["batch_size"],
        shuffle=True,
    )
    yield from _epochs(request, DataLoader, dataset)


def _litdata(request: _Request) -> _Stages:
    import pyarrow  # noqa: F401  Its workers, forked from here, import it.
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It would refuse the server here, which has no TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    more = {"cache_dir": request["cache"], "transform": _decoder(request)}
    yield ()
    dataset = StreamingDataset(request["url"], shuffle=True, **more)
    yield from _epochs(request, StreamingDataLoader, dataset)


def _hugging_face(request: _Request) -> _Stages:
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    yield ()
    stream = load_dataset(request["url"], split="train", streaming=True)
    stream = stream.shuffle(seed=0, buffer_size=_SHUFFLED)
    yield from _epochs(request, DataLoader, stream)


def _torchdata(request: _Request) -> _Stages:
    from datasets import load_dataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    yield ()
    rows = load_dataset(request["url"], split="train", cache_dir=request["cache"])
    yield from _epochs(request, StatefulDataLoader, rows, shuffle=True)


def _epochs(request: _Request, make: Any, dataset: Any, **more: Any) -> _Stages:
    loader = make(dataset, batch_size=request["batch_size"], num_workers=request["workers"], **more)
    yield ()
    for _ in range(request["epochs"]):
        yield map(_rows, loader)


def _rows(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))


def _decoder(request: _Request) -> Any:
    """Returns a function that decodes the image of a sample by hand; None for texts.

    Workers are forked from this process: what it imports here, none of them imports on the clock.
    """
    if not (size := request["size"]):
        return None
    import numpy as np
    import torch
    from PIL import Image

    Image.preinit()

    def decoded(sample: dict[str, Any]) -> dict[str, Any]:
        image = Image.open(io.BytesIO(sample["image"])).convert("RGB")
        pixels = np.array(image.resize((size, size), Image.Resampling.BILINEAR))
        return {**sample, "image": torch.from_numpy(pixels)}

    return decoded


def _to_ours(request: _Request) -> _Stages:
    import pandas  # noqa: F401
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
    _define_torchvisions_operators()
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    if request["size"] is None:
        import pyarrow.parquet  # noqa: F401  For _samples, so that it is not on the clock.

        columns = {"text": "str"}
    yield ()
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


def _define_torchvisions_operators() -> None:
    """Lets torchvision be imported beside a torch without CUDA, where its library does not load."""
    import torch

    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)


if __name__ == "__main__":
    readers = (_ours, _files, _mosaic, _litdata, _hugging_face, _torchdata)
    serve({one.__name__[1:]: one for one in (*readers, _to_ours, _to_mosaic, _to_litdata)})
