"""A ``torch.profiler`` trace of a few early steps, as a file for chrome://tracing and Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# The first steps allocate, compile and warm up, and are not like the others.
FIRST_STEP = 5
TRACED_STEPS = 5


class StepTrace:
    """Traces ``TRACED_STEPS`` steps from ``FIRST_STEP`` on, and writes the trace.

    Args:
        path: The file to write: gzipped JSON.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._step = 0
        self._profiler: Any = None

    def step(self) -> None:
        """Counts a step that is over."""
        self._step += 1
        if self._step == FIRST_STEP:
            from torch import profiler

            kinds = [profiler.ProfilerActivity.CPU]
            if profiler.ProfilerActivity.CUDA in profiler.supported_activities():
                kinds.append(profiler.ProfilerActivity.CUDA)
            self._profiler = profiler.profile(activities=kinds)
            self._profiler.start()
        elif self._profiler is not None:
            self._profiler.step()
            if self._step == FIRST_STEP + TRACED_STEPS:
                self.close()

    def close(self) -> None:
        """Writes the trace, unless that has been done."""
        if self._profiler is None:
            return
        tracer, self._profiler = self._profiler, None
        tracer.stop()
        tracer.export_chrome_trace(str(self._path))
