"""One rank of the benchmark of remote stores: reads its shard epoch by epoch, on request.

Its only argument says as JSON what to read and how.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from sparkdl_runner.data import make_spark_converter


def _read(request: dict[str, Any]) -> None:
    began = time.perf_counter()
    options = request["storage_options"]
    converter = make_spark_converter(request["url"], storage_options=options)
    described = time.perf_counter() - began
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    with converter.make_torch_dataloader(
        batch_size=request["batch_size"],
        num_epochs=1,
        cur_shard=request["rank"],
        shard_count=request["ranks"],
        tail="uneven",
        workers_count=request["workers_count"],
        storage_options=options,
        **request["arguments"],
    ) as loader:
        opened = time.perf_counter() - began
        print("open", flush=True)
        sys.stdin.readline()
        for epoch in range(request["epochs"]):
            loader.set_epoch(epoch)
            rows, total = 0, 0.0
            began, cpu_began = time.perf_counter(), time.process_time()
            for batch in loader:
                first = next(iter(batch.values()))
                rows += len(first)
                total += float(first.sum())
            answer = {
                "rows": rows,
                "sum": total,
                "seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu_began,
                "open_seconds": opened,
                "describe_seconds": described,
            }
            print(json.dumps(answer), flush=True)
            sys.stdin.readline()


if __name__ == "__main__":
    _read(json.loads(sys.argv[1]))
