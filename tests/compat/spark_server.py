"""Runs this Python's Spark Connect server until it is asked to end, and prints its URL.

Takes the folder for the server's files.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / name) for name in ("tests", "tests/integration/connect"))]

from connect_server import started  # noqa: E402

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with started(Path(sys.argv[1]), sys.executable) as server:
        print(server.url, flush=True)
        signal.sigwait([signal.SIGTERM])
