"""Who looks at what threads run collects no garbage meanwhile, which might never end."""

from __future__ import annotations

import gc
import subprocess
import sys

from sparkdl_runner.base.thread_frames import current_frames

# The end of a threading.local takes the lock that sys._current_frames() holds.
LOOK = """
import gc, sys, threading
from sparkdl_runner.base.thread_frames import current_frames

def look(depth):
    return look(depth - 1) if depth else current_frames()

gc.set_threshold(1)
for _ in range(200):
    cycle = [threading.local()]
    cycle[0].own = cycle
    del cycle
    assert threading.get_ident() in look(20)
print(gc.isenabled())
"""


def test_garbage_does_not_stop_who_looks() -> None:
    looked = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120
    )
    assert looked.stdout == "True\n", looked.stderr


def test_who_collects_none_goes_on_so() -> None:
    gc.disable()
    try:
        assert current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
