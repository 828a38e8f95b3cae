"""Sends a network to the Python workers of a Spark session, once."""

from __future__ import annotations

import threading
from typing import Any

from sparkdl_runner.base.sent_file import SentFile, key_of
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.tensors.spark_worker import PackedNetwork

# A CrossValidator transforms in threads: the first one asks the executors, and the others know.
_lock = threading.Lock()


def sent_network(session: Any, content: bytes, *, is_graph: bool) -> PackedNetwork:
    """Makes a network known to the workers: by a broadcast, or as a file through Spark Connect.

    Args:
        session: The session of the DataFrame that is transformed.
        content: The network: pickled, or a file of ``torch.export``.
        is_graph: Whether it is the latter.

    Raises:
        LaunchError: The workers of a Spark Connect server lack torch, or another package.
    """
    context = getattr(session, "_sc", None)
    sent = _sent_file(session, content) if context is None else context.broadcast(content)
    return PackedNetwork(key_of(content), sent, is_graph=is_graph)


def _sent_file(session: Any, content: bytes) -> SentFile:
    from sparkdl_runner.launch.driver.connect.probe import known
    from sparkdl_runner.launch.driver.connect.sent_file import send_file

    with _lock:
        known(session, RunConfig(), get_backend("torch").imports, StopRequest())
    return send_file(session, content)
