"""Readers in processes of their own, stage by stage: all ranks begin each stage together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.ranks.processes import cpu_seconds, last_line, module_command, module_environment

Work = Callable[[dict[str, Any]], Iterator[Iterable[int]]]
"""Yields the stages of a request, each the sizes of what it goes through: first its imports."""
Answer = dict[str, float]
"""``samples``, ``seconds``, ``cpu_seconds`` and the most ``bytes`` since the first stage."""


def in_stages(
    requests: Sequence[Mapping[str, Any]],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Generator[list[Answer]]:
    """Starts a process for each request, each a rank, and yields their answers for each stage.

    A stage begins when its answers are asked for.

    Raises:
        RuntimeError: One failed; with the last line of its errors.
    """
    # As launchers set it.
    threads = str(max(1, len(os.sched_getaffinity(0)) // len(requests)))
    variables = {**module_environment(), "OMP_NUM_THREADS": threads, **(environment or {})}
    with ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in requests]
        processes = [
            subprocess.Popen(
                module_command("peers.sample_readers", json.dumps(request), python=python),
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            )
            for request, written in zip(requests, errors, strict=True)
        ]
        for process in processes:
            stack.callback(process.communicate)
            stack.callback(process.kill)
        while True:
            lines = [process.stdout.readline() for process in processes]  # type: ignore[union-attr]
            for process, line, written in zip(processes, lines, errors, strict=True):
                if not line and process.wait():
                    written.seek(0)
                    raise RuntimeError(last_line(written.read()))
            if not all(lines):
                return
            yield [json.loads(line) for line in lines]
            for process in processes:
                print("go", file=process.stdin, flush=True)


def serve(works: Mapping[str, Work]) -> None:
    """Does what this process's argument asks for, and answers after each stage."""
    request = json.loads(sys.argv[1])
    # Libraries print to the standard output too: answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    stages, base = works[request["work"]](request), None
    while True:
        began, used = time.perf_counter(), cpu_seconds()
        if (stage := next(stages, None)) is None:
            return
        answer: Answer = {"samples": sum(stage)}
        del stage  # A loader's processes end with its iterator.
        answer["seconds"] = time.perf_counter() - began
        answer["cpu_seconds"] = cpu_seconds() - used
        answer["bytes"] = status_bytes("VmHWM") - (base or 0)
        if base is None:
            Path("/proc/self/clear_refs").write_text("5")  # The peak so far counts no more.
            base = status_bytes("VmRSS")
        print(json.dumps(answer), file=answers, flush=True)
        sys.stdin.readline()


def status_bytes(name: str) -> int:
    """Bytes of an entry of this process's status: of it alone, unlike getrusage's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
