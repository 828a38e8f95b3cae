"""Brings what is in the spool to MLflow, in order, as soon as MLflow takes it."""

from __future__ import annotations

import inspect
import threading
import time
from typing import Any

from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.run.server import REQUEST_SECONDS, open_store, origin
from sparkdl_runner.tracking.run.server_calls import TookTooLongError, reason_of, within
from sparkdl_runner.tracking.run.spool import Spool

MAX_REFUSED = 20
# An entry that fails so often is given up, if one after it is taken.
MAX_TRIES = 20
MAX_SKIPPED = 10
# MLflow takes at most 1000 metrics, 100 parameters and 100 tags at a time.
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
_MOST = {"metric": MAX_METRICS, "param": MAX_PARAMS, "tag": MAX_TAGS}
# Batch entries, so that the server gets a request every so many seconds.
GATHER_SECONDS = 0.5
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 5.0
# How long the thread may take to end; one whose request hangs is left behind.
END_SECONDS = 1.0
# A limit of requests is for each byte that comes; this one is for a whole answer.
_ANSWER_SECONDS = 3 * REQUEST_SECONDS
_SHOWN_CHARACTERS = 500
_TRY_AGAIN = (401, 403, 404, 408, 425, 429, 502, 503, 504)


class ServerUnreachableError(Exception):
    """Entries did not arrive; trying again may help."""


class ServerFailedError(ServerUnreachableError):
    """The server is there, but it failed or took too long."""


class RefusedError(Exception):
    """Entries arrived and are invalid; trying again is of no use."""


class TrackingServer:
    """One tracking URI, and one run there.

    Args:
        uri: MLflow's tracking URI.
        run_id: The run.
    """

    def __init__(self, uri: str, run_id: str) -> None:
        self._uri = uri
        self._run_id = run_id
        self._store: Any = None

    def log(self, entries: list[Entry]) -> None:
        """Adds metrics, parameters and tags to the run, all or none; at most 1000.

        With a server, this is one request to its documented ``runs/log-batch``: MLflow's own client
        would repeat it for minutes, past the time that anybody waits.

        Raises:
            ServerUnreachableError: It is worth trying again.
            RefusedError: It is not.
        """
        if self._store is None:
            self._store = open_store(self._uri)
        if hasattr(self._store, "get_host_creds"):
            self._post(entries)
        else:
            self._write(entries)

    def _post(self, entries: list[Entry]) -> None:
        from mlflow.utils.rest_utils import http_request

        body: dict[str, Any] = {"run_id": self._run_id, "metrics": [], "params": [], "tags": []}
        for kind, key, value, *more in entries:
            if kind == "metric":
                at, step, extra = more
                number = value if abs(value) < float("inf") else _PROTO_NUMBERS[str(value)]
                body["metrics"].append(
                    {"key": key, "value": number, "timestamp": at, "step": step, **extra}
                )
            else:
                body[f"{kind}s"].append({"key": key, "value": value})
        options: dict[str, Any] = {}
        if "retry_timeout_seconds" in inspect.signature(http_request).parameters:  # since MLflow 3
            options["retry_timeout_seconds"] = REQUEST_SECONDS

        def ask() -> tuple[int, str]:
            return _short(
                http_request(
                    host_creds=self._store.get_host_creds(),
                    endpoint="/api/2.0/mlflow/runs/log-batch",
                    method="POST",
                    json=body,
                    max_retries=0,
                    timeout=REQUEST_SECONDS,
                    raise_on_status=False,
                    stream=True,
                    **options,
                )
            )

        try:
            code, text = within(ask, _ANSWER_SECONDS)
        except TookTooLongError as error:
            raise ServerFailedError(f"no whole answer in {_ANSWER_SECONDS:g} s") from error
        except Exception as error:  # MLflow wraps those of requests, and has no narrower kind.
            reason = origin(error)
            kind = ServerFailedError if isinstance(reason, TimeoutError) else ServerUnreachableError
            raise kind(reason_of(reason)) from error
        if code == 200:
            return
        answer = f"HTTP {code}: {text}"
        # Authentication and not-found errors may be transient (a rotated token, a server that
        # restarts), and a gateway answers for a server that is down.
        if code in _TRY_AGAIN:
            raise ServerUnreachableError(answer)
        if code >= 500:
            raise ServerFailedError(answer)
        raise RefusedError(answer)

    def _write(self, entries: list[Entry]) -> None:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException

        metrics, params, tags = [], [], []
        for kind, key, value, *more in entries:
            if kind == "metric":
                at, step, extra = more
                metrics.append(Metric(key, value, at, step, **extra))
            elif kind == "param":
                params.append(Param(key, value))
            else:
                tags.append(RunTag(key, value))
        try:
            self._store.log_batch(self._run_id, metrics, params, tags)
        except MlflowException as error:
            if error.error_code == "INVALID_PARAMETER_VALUE":
                raise RefusedError(reason_of(error)) from error
            raise ServerFailedError(reason_of(error)) from error
        except Exception as error:  # A database has errors of its own: locked, gone, full.
            raise ServerUnreachableError(reason_of(error)) from error


def _short(response: Any) -> tuple[int, str]:
    """The status of an answer whose body has not been read, and the beginning of its text."""
    with response:
        if response.status_code == 200:
            return 200, ""
        # Small pieces: each may be packed a thousandfold.
        content = next(response.iter_content(4 * _SHOWN_CHARACTERS), b"")
        return response.status_code, content.decode(errors="replace")[:_SHOWN_CHARACTERS]


# JSON has no such numbers; protobuf's JSON writes them so.
_PROTO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class Delivery:
    """A thread between a spool and MLflow.

    Args:
        spool: What is to be delivered; closed by ``close``.
        server: Where to.

    Attributes:
        refused: What MLflow will never take, in words.
        trouble: Why nothing is delivered at the moment; None if all is well.
    """

    def __init__(self, spool: Spool, server: TrackingServer) -> None:
        self._spool = spool
        self._server = server
        self.refused: list[str] = []
        self.trouble: str | None = None
        self.troubled_since: float | None = None
        self._stopped = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-mlflow", daemon=True)
        self._thread.start()

    def flush(self, timeout_seconds: float) -> bool:
        """Waits until the spool is empty. Returns whether it is."""
        self._hurry.set()
        return self._spool.wait_until_empty(timeout_seconds)

    def close(self, timeout_seconds: float) -> int:
        """Delivers what can be delivered in time. Returns how many entries could not."""
        self.flush(timeout_seconds)
        self._stopped.set()
        self._spool.stop_waiting()
        self._thread.join(END_SECONDS)
        left = len(self._spool)
        if not self._thread.is_alive():
            self._spool.close()
        return left

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        failures = 0
        while not self._stopped.is_set():
            waiting = self._spool.peek(MAX_METRICS, timeout_seconds=0.5)
            if not waiting:
                continue
            if len(waiting) < MAX_METRICS:
                self._hurry.wait(GATHER_SECONDS)
                waiting = self._spool.peek(MAX_METRICS, timeout_seconds=0.5)
            # After a failure, try half: one entry may be at fault, or the batch be too slow.
            batch = _fitting(waiting)[: max(1, MAX_METRICS >> min(failures, 10))]
            try:
                self._deliver(batch)
            except Exception as error:  # No error may end this thread.
                answered = isinstance(error, ServerFailedError)
                failures += answered
                if answered and len(batch) == 1 and failures > MAX_TRIES:
                    failures -= self._skip(waiting[: MAX_SKIPPED + 1], error)
                self.trouble = str(error) or type(error).__name__
                self.troubled_since = self.troubled_since or time.monotonic()
                self._stopped.wait(pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
                continue
            self.trouble = self.troubled_since = None
            pause, failures = FIRST_PAUSE_SECONDS, max(0, failures - 1)
            self._spool.drop(len(batch))

    def _deliver(self, batch: list[Entry]) -> None:
        """Delivers a batch; where it is refused, all of it that is not."""
        try:
            self._server.log(batch)
        except RefusedError as error:
            if len(batch) == 1:
                self._refuse(batch[0], error)
                return
            middle = len(batch) // 2
            self._deliver(batch[:middle])
            self._deliver(batch[middle:])

    def _skip(self, waiting: list[Entry], error: Exception) -> int:
        """Gives up the first entries if one after them is taken. Returns how many."""
        for count, entry in enumerate(waiting[1:], start=1):
            if not self._is_taken(entry):
                continue
            for earlier in waiting[:count]:
                # Try again, now that the server is known to take something.
                if not self._is_taken(earlier):
                    self._refuse(earlier, error)
            self._spool.drop(count + 1)
            return count
        return 0

    def _is_taken(self, entry: Entry) -> bool:
        try:
            self._deliver([entry])
        except Exception:
            return False
        return True

    def _refuse(self, entry: Entry, error: Exception) -> None:
        kind, key, *_ = entry
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(f"the {kind} {key!r}: {error}")
        elif len(self.refused) == MAX_REFUSED:
            self.refused.append("and more was refused")


def _fitting(entries: list[Entry]) -> list[Entry]:
    """As many of the first entries as MLflow takes at a time."""
    counts = dict.fromkeys(_MOST, 0)
    for index, (kind, *_) in enumerate(entries):
        counts[kind] += 1
        if counts[kind] > _MOST[kind] or index == MAX_METRICS:
            return entries[:index]
    return entries
