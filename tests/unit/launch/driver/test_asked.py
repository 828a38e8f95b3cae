"""What a cluster without a slot was asked for, and what its workers have."""

from __future__ import annotations

import http.server
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.launch.driver.spark import asked as module
from sparkdl_runner.launch.driver.spark.asked import Asked, Worker, described, nothing_fits

SMALL = Worker(cores=2, memory_mib=4096, gpus=0)
# As the page of a master of Spark 4.3 has it.
PAGE = {
    "url": "spark://127.0.0.1:7177",
    "workers": [
        {"cores": 2, "memory": 4096, "resources": {}, "state": "ALIVE"},
        {"cores": 64, "memory": 99999, "resources": {}, "state": "DEAD"},
    ],
}


def asked(**changed: Any) -> Asked:
    usual: dict[str, Any] = {"cores": 1, "memory_mib": 1024, "gpus": 0}
    return Asked(**{**usual, "task_cores": 1, "task_gpus": 0.0, **changed})


@pytest.mark.parametrize(
    ("wanted", "lower"),
    [
        (asked(), ""),
        (asked(cores=None), ""),
        (asked(cores=4), "Lower spark.executor.cores to 2 or less"),
        (asked(memory_mib=5120), "Lower spark.executor.memory to 4096m or less"),
        (asked(gpus=1), "Lower spark.executor.resource.gpu.amount to 0 or less"),
        (asked(task_cores=2), "Lower spark.task.cpus to 1 or less"),
        (
            asked(cores=4, memory_mib=5120),
            "Lower spark.executor.cores to 2 or less and spark.executor.memory to 4096m or less",
        ),
    ],
)
def test_what_no_worker_has_is_to_be_lowered(wanted: Asked, lower: str) -> None:
    assert described(wanted, [SMALL, Worker(cores=1, memory_mib=512, gpus=0)])[1] == lower


def test_what_was_asked_and_what_is_there_is_told() -> None:
    text, _ = described(asked(cores=4, gpus=1, task_gpus=1.0), [SMALL])
    assert text == (
        "An executor asks for 4 cores (spark.executor.cores) and 1024 MiB of memory "
        "(spark.executor.memory) and 1 GPUs (spark.executor.resource.gpu.amount), and a task for "
        "1 of its cores (spark.task.cpus) and 1 GPUs (spark.task.resource.gpu.amount). Of the "
        "workers that are there (1), none has more than 2 cores, 4096 MiB and 0 GPUs."
    )


class MastersPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(PAGE).encode())

    def log_message(self, *_: Any) -> None:
        pass


def context(master: str, **settings: str) -> Any:
    scala = SimpleNamespace(executorMemory=lambda: 512)
    named = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    return SimpleNamespace(master=master, _conf=named, _jsc=SimpleNamespace(sc=lambda: scala))


def test_living_workers_are_read_from_the_masters_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE_SECONDS", 120.0)
    with http.server.HTTPServer(("127.0.0.1", 0), MastersPage) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        port = str(server.server_port)
        session = context("spark://127.0.0.1:1", executor_cores="4", master_ui_port=port)
        text, lower = nothing_fits(session)
        serving.join()
    assert "asks for 4 cores (spark.executor.cores) and 512 MiB" in text
    assert lower == "Lower spark.executor.cores to 2 or less"


@pytest.mark.parametrize("master", ["yarn", "spark://127.0.0.1:1", "spark://odd"])
def test_without_a_page_only_what_was_asked_is_told(master: str) -> None:
    text, lower = nothing_fits(context(master, master_ui_port="1"))
    assert text.startswith("An executor asks for all cores of a worker and 512 MiB")
    assert (text.count("workers"), lower) == (0, "")
