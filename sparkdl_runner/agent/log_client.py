"""An agent's end of the log channel: sends what its rank says, and hears the driver's stop."""

from __future__ import annotations

import base64
import itertools
import json
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sparkdl_runner.agent.unconfirmed import Unconfirmed
from sparkdl_runner.wire.channel import FLUSH_SECONDS, ChannelAddress
from sparkdl_runner.wire.frames import LENGTH, MAC_BYTES, MAX_FRAME_BYTES, NONCE_BYTES, FrameCodec
from sparkdl_runner.wire.outcome import Outcome
from sparkdl_runner.wire.sink import Sink, write_lines
from sparkdl_runner.wire.vital_signs import VitalSigns
from sparkdl_runner.world import World

CONNECT_SECONDS = 5.0
# What an agent holds back for a driver that is slow to read; beyond it, lines are dropped.
MAX_QUEUED_FRAMES = 256
# How long the driver may take to answer a failure with a stop to all.
ANSWER_SECONDS = 4.0
RECONNECT_SECONDS = 0.5
ALIVE_SECONDS = 1.0
# What must arrive is kept until the driver says that it has. Reports beyond the limit are dropped;
# parts of files wait for room.
MAX_UNCONFIRMED = 2000
# What did not fit into a frame would break the connection for all that comes after it.
MAX_REPORT_BYTES = MAX_FRAME_BYTES - 64 * 1024
MAX_UNCONFIRMED_PARTS = 32
FILES_SECONDS = 30.0
_NUDGE: dict[str, Any] = {}
"""Wakes the sender; says nothing."""


class LogClient(Sink):
    """An agent's end. Never blocks the agent: what the driver does not take in time is dropped.

    Args:
        channel: From the closure.
        partition: The agent's Spark partition, by which the driver knows it before it has a rank.
        relay_output: Whether printed lines are sent, or only messages and failures.
        echo_output: Whether printed lines also go to this process's stderr, which on a cluster
            is the executor's log.
        fence_seconds: An agent that has heard the driver, and then not for so long, is cut off:
            its worker is ended, lest it go on beside the attempt that replaces it.
        on_stop: Called when the driver asks for the worker's end, or the agent is cut off.
        on_stacks: Called when the driver asks for the worker's stacks; returns them.
    """

    _world: World

    def __init__(
        self,
        channel: ChannelAddress,
        partition: int,
        *,
        relay_output: bool,
        echo_output: bool = False,
        fence_seconds: float,
        on_stop: Callable[[], None],
        on_stacks: Callable[[], str],
    ) -> None:
        self._channel = channel
        self._partition = partition
        self._host = socket.gethostname()
        self._placed: dict[str, Any] | None = None
        self._relay_output = relay_output
        self._echo_output = echo_output
        self._fence_seconds = fence_seconds
        self._on_stop = on_stop
        self._on_stacks = on_stacks
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_QUEUED_FRAMES)
        self._connected = threading.Event()
        self._settled = threading.Event()
        self._stop_heard = threading.Event()
        self._heard_at = 0.0
        self._is_closing = False
        self._was_connected = False
        self._is_fenced = False
        self._unconfirmed = Unconfirmed()
        self._sent_up_to = 0
        self._files_until: float | None = None
        self.dropped_lines = 0
        self.dropped_reports = 0
        self._sender = threading.Thread(target=self._send, name="sparkdl-log-send", daemon=True)
        self._sender.start()

    def place(self, world: World) -> None:
        """Says which rank this agent's is. Call it before anything else is sent."""
        self._world = world
        self._placed = {"kind": "placed", "world": world.to_json()}
        self._put(_NUDGE)

    def output(self, world: World, lines: list[str]) -> None:
        """See ``Sink.output``."""
        if self._echo_output:
            write_lines(sys.stderr, world, lines)
        if self._relay_output and not self._put({"kind": "output", "lines": lines}):
            self.dropped_lines += len(lines)

    def message(self, world: World, text: str) -> None:
        """See ``Sink.message``."""
        if not self._put({"kind": "message", "text": text}):
            self.dropped_lines += 1

    def failed(self, outcome: Outcome) -> None:
        """See ``Sink.failed``; without the pickled exception, which is not for this channel."""
        report = {"kind": "failed", "report": outcome.to_report()}
        while not self._put(report):
            # What failed matters more than what was printed.
            with suppress(queue.Empty):
                self._drop(self._queue.get_nowait())

    def vital_signs(self, world: World, signs: VitalSigns) -> None:
        """See ``Sink.vital_signs``."""
        self._put({"kind": "vital_signs", "signs": signs.to_json()})

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Sink.progress``. Metrics must arrive; for other reports, any later one makes up."""
        message = {"kind": "progress", "report": report}
        if not report["entries"] and not report["problems"]:
            self._put(message)
        elif len(json.dumps(report)) > MAX_REPORT_BYTES or not self._put_surely(
            message, MAX_UNCONFIRMED, wait_seconds=0
        ):
            self.dropped_reports += 1

    def loader_plan(self, world: World, plan: dict[str, Any]) -> None:
        """See ``Sink.loader_plan``."""
        message = {"kind": "loader_plan", "plan": plan}
        if not self._put_surely(message, MAX_UNCONFIRMED, wait_seconds=0):
            self.dropped_reports += 1

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """See ``Sink.host_metrics``."""
        self._put({"kind": "host_metrics", "values": values})

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """See ``Sink.file_part``. All files together have a limited time to arrive."""
        now = time.monotonic()
        self._files_until = self._files_until or now + FILES_SECONDS
        part = {
            "kind": "file_part",
            "name": name,
            "data": base64.b64encode(data).decode("ascii"),
            "is_first": is_first,
        }
        self._put_surely(part, MAX_UNCONFIRMED_PARTS, wait_seconds=self._files_until - now)

    @property
    def is_connected(self) -> bool:
        """Whether the driver hears us; waits for the connection to be made or to fail."""
        self._settled.wait(CONNECT_SECONDS + 1)
        return self._connected.is_set()

    def driver_has_heard(self) -> bool:
        """Whether the driver has answered a failure: it tells everyone to stop."""
        return self.is_connected and self._stop_heard.wait(ANSWER_SECONDS)

    def notes(self) -> tuple[str, ...]:
        """Closes, and returns what the driver should say about this connection after the run."""
        self.close()
        notes = []
        if self._is_fenced:
            notes.append(
                f"rank {self._world.rank} on host {self._world.host} was ended, since it had not "
                f"heard the driver for {self._fence_seconds:g} s"
            )
        elif not self._was_connected:
            notes.append(
                f"rank {self._world.rank} on host {self._world.host} could not reach the driver at "
                f"{self._channel.host}:{self._channel.port}, so its output was not shown"
            )
        elif self.dropped_lines:
            notes.append(
                f"{self.dropped_lines} lines of rank {self._world.rank} were not shown, since the "
                "driver could not keep up"
            )
        lost = self.dropped_reports + len(self._unconfirmed)
        if lost:
            notes.append(
                f"{lost} reports of rank {self._world.rank} (metrics, parts of files) may be "
                "lost: the driver did not confirm them"
            )
        return tuple(notes)

    def close(self) -> None:
        """Sends what is queued, as far as the driver takes it in time; the rest is dropped."""
        if self._is_closing:
            return
        self._was_connected = self.is_connected
        if self._was_connected:  # Words of confirmation are on their way.
            self._unconfirmed.wait_until_empty(FLUSH_SECONDS)
        self._is_closing = True
        for last in ({"kind": "ended"}, None):
            try:
                self._queue.put(last, timeout=FLUSH_SECONDS)
            except queue.Full:
                pass
        self._sender.join(FLUSH_SECONDS)
        with suppress(queue.Empty):
            while True:
                self._drop(self._queue.get_nowait())
        self._put(None)  # The sender may still be busy with a frame, and then looks for its end.

    def _drop(self, message: dict[str, Any] | None) -> None:
        """Counts the lines of a message that will not arrive."""
        if message is not None:
            self.dropped_lines += len(message.get("lines", [])) + ("text" in message)

    def _put(self, message: dict[str, Any] | None) -> bool:
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            return False
        return True

    def _put_surely(self, message: dict[str, Any], most: int, *, wait_seconds: float) -> bool:
        """Queues what is kept until the driver has confirmed it. Returns whether there was room."""
        if self._settled.is_set() and not self._sender.is_alive():
            return False
        if not self._unconfirmed.put(message, most, wait_seconds=wait_seconds):
            return False
        self._put(_NUDGE)
        return True

    def _send_unconfirmed(self, connection: socket.socket, codec: FrameCodec) -> None:
        for number, message in self._unconfirmed.after(self._sent_up_to):
            frame = {"kind": "sure", "number": number, "message": message}
            try:
                sealed = codec.seal(frame)
            except ValueError:  # Too large; it must not stand in the way of all others.
                self.dropped_reports += 1
                sealed = codec.seal({**frame, "message": _NUDGE})
            connection.sendall(sealed)
            self._sent_up_to = number

    def _send(self) -> None:
        began = time.monotonic()
        try:
            for turn in itertools.count():
                if turn > 1:  # The first time again at once: a connection was reset, say.
                    time.sleep(RECONNECT_SECONDS)
                try:
                    place = (self._channel.host, self._channel.port)
                    with socket.create_connection(place, timeout=CONNECT_SECONDS) as connection:
                        self._talk(connection)
                    return
                except (OSError, EOFError, ValueError) as error:
                    self._connected.clear()
                    if self._settled.is_set():
                        pass
                    elif time.monotonic() - began < CONNECT_SECONDS and not self._is_closing:
                        continue  # Many at once may be more than the driver can take.
                    else:
                        self._say_once(error)
                        return
                if self._is_closing or self._is_cut_off():
                    return
        finally:
            self._connected.clear()
            self._settled.set()

    def _say_once(self, error: Exception) -> None:
        print(
            f"sparkdl_runner: partition {self._partition} cannot reach the driver's log channel at "
            f"{self._channel.host}:{self._channel.port} ({error}); the run goes on, its output is "
            "not shown on the driver.",
            file=sys.stderr,
        )

    def _is_cut_off(self) -> bool:
        """Ends the worker if the driver has not been heard for too long."""
        if time.monotonic() - self._heard_at < self._fence_seconds:
            return False
        if not self._stop_heard.is_set():
            self._is_fenced = True
            self._on_stop()
        return True

    def _talk(self, connection: socket.socket) -> None:
        nonce = _receive_exactly(connection, NONCE_BYTES)
        outgoing = FrameCodec(self._channel.key, nonce, b"agent")
        incoming = FrameCodec(self._channel.key, nonce, b"driver")
        hello = {"kind": "hello", "partition": self._partition, "host": self._host}
        connection.sendall(outgoing.seal(hello))
        # The driver says something every second; and what it does not take, it will not hear.
        connection.settimeout(self._fence_seconds)
        self._heard_at = time.monotonic()
        self._connected.set()
        self._settled.set()
        listening = threading.Thread(
            target=self._listen, args=(connection, incoming), name="sparkdl-log-hear", daemon=True
        )
        listening.start()
        try:
            self._send_all(connection, outgoing, listening)
            # The driver closes when it has read all; that is what the other thread then hears.
            connection.shutdown(socket.SHUT_WR)
            listening.join(FLUSH_SECONDS)
        finally:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the other thread
            listening.join()

    def _send_all(
        self, connection: socket.socket, codec: FrameCodec, listening: threading.Thread
    ) -> None:
        """Sends what comes, until the end."""
        is_placed = False
        self._sent_up_to = 0  # Of what an earlier connection sent, some may not have arrived.
        while True:
            if not listening.is_alive() or self._is_cut_off():
                raise EOFError("the driver is not heard any more")
            if self._placed is not None and not is_placed:
                connection.sendall(codec.seal(self._placed))
                is_placed = True
            try:
                message = self._queue.get(timeout=ALIVE_SECONDS)
            except queue.Empty:
                message = {"kind": "alive"}  # Before it begins, a worker gives no other sign.
            if is_placed:
                self._send_unconfirmed(connection, codec)
            if message is None:
                return
            if message is not _NUDGE:
                try:
                    connection.sendall(codec.seal(message))
                except OSError:
                    self._drop(message)
                    raise

    def _listen(self, connection: socket.socket, codec: FrameCodec) -> None:
        try:
            while True:
                (size,) = LENGTH.unpack(_receive_exactly(connection, LENGTH.size))
                if size > MAX_FRAME_BYTES:
                    return
                mac = _receive_exactly(connection, MAC_BYTES)
                message = codec.open(mac, _receive_exactly(connection, size))
                kind = message["kind"]
                self._heard_at = time.monotonic()
                if kind == "stop":
                    self._stop_heard.set()
                    self._on_stop()
                elif kind == "stacks":
                    self._put({"kind": "stacks", "text": self._on_stacks()})
                elif kind == "confirmed":
                    self._unconfirmed.confirm(int(message["number"]))
        except (OSError, EOFError, ValueError):
            pass
        finally:
            self._connected.clear()  # The driver has closed the connection, or is gone.
            self._put(_NUDGE)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError("the driver closed the connection")
        data += chunk
    return data
