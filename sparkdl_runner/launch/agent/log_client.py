"""An agent's end of the channel to the driver: sends its rank's messages, and gets the driver's."""

from __future__ import annotations

import hashlib
import itertools
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.agent.outbox import Outbox
from sparkdl_runner.launch.wire import messages
from sparkdl_runner.launch.wire.assignments import Assignment
from sparkdl_runner.launch.wire.channel import FLUSH_SECONDS, ChannelAddress
from sparkdl_runner.launch.wire.frames import (
    NONCE_BYTES,
    FrameCodec,
    receive_exactly,
    receive_frame,
)
from sparkdl_runner.launch.wire.message_json import decode, encode
from sparkdl_runner.launch.wire.messages import Message
from sparkdl_runner.launch.wire.rank_lines import write_lines
from sparkdl_runner.rank.world import Peer, World

CONNECT_SECONDS = 5.0
# How long the driver may take to answer a failure with a stop to all.
ANSWER_SECONDS = 4.0
RECONNECT_SECONDS = 0.5
ALIVE_SECONDS = 1.0
# How often the driver is asked whether it has all of a value.
ASK_SECONDS = 1.0
# How much of a value is in one message.
PART_BYTES = 256 * 1024
# How long all files of a rank together may take to arrive.
FILES_SECONDS = 30.0


class LogClient:
    """An agent's end. Never blocks the agent: what the driver does not take in time is dropped.

    Args:
        channel: From the closure.
        me: Who the agent is.
        relay_output: Whether printed lines are sent, or only messages and failures.
        echo_output: Whether printed lines also go to this process's stderr, which on a cluster
            is the executor's log.
        fence_seconds: An agent that has lost the driver for so long ends its worker. Else the
            worker would go on beside the attempt that replaces it.
        is_patient: Whether a driver that is silent, and still has its end of the connection, is
            waited for. It is only suspended if it is on this host.
        copy: How often Spark had started this agent's task before.
        on_assignment: Called with the agent's assignment; with ``Superfluous`` if another task has
            its rank; or with ``Gather`` if the driver asks
            for that, or is not reached in time. More is tried then, so that the rank is heard
            from when it is.
        on_stop: Called when the driver asks for the worker's end, or the agent is cut off; gets
            whether the ranks will be started again.
        on_request: Called when the driver asks the function to end by itself; gets the reason.
        on_preempt: Called when the driver knows that this host will be taken away; gets the reason.
        on_growth: Called when the driver asks for an end with the next checkpoint; gets the reason.
        on_stacks: Called when the driver asks for the worker's stacks; see
            ``WorkerProcess.stacks``.
    """

    def __init__(
        self,
        channel: ChannelAddress,
        me: Peer,
        *,
        relay_output: bool,
        echo_output: bool = False,
        fence_seconds: float,
        is_patient: bool = False,
        copy: int = 0,
        on_assignment: Callable[[Assignment | messages.Gather | messages.Superfluous], None],
        on_stop: Callable[[bool], None],
        on_request: Callable[[str], None],
        on_preempt: Callable[[str], None],
        on_growth: Callable[[str], None],
        on_stacks: Callable[[], messages.Stacks],
    ) -> None:
        self._channel = channel
        self._place = f"{channel.host}:{channel.port}"
        self._partition = me.partition
        self._hello = messages.Hello(me, copy)
        self._relay_output = relay_output
        self._echo_output = echo_output
        self._fence_seconds = fence_seconds
        self._is_patient = is_patient
        self._on_assignment = on_assignment
        self._on_stop = on_stop
        self._on_request = on_request
        self._on_preempt = on_preempt
        self._on_growth = on_growth
        self._on_stacks = on_stacks
        self._hosts: set[str] = set()
        self._outbox = Outbox()
        self._connected = threading.Event()
        self._settled = threading.Event()
        self._stop_heard = threading.Event()
        self._heard_at: float | None = None
        self._is_closing = False
        self._is_fenced = False
        self._files_until: float | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name="sparkdl-log-send", daemon=True)
        self._sender.start()

    def place(self, world: World) -> None:
        """Says which rank this agent's is. Call it before anything else is sent."""
        self._outbox.place(messages.Placed(world))

    def take(self, world: World, message: Message) -> None:
        """Sends a message of the rank; see ``Receiver``."""
        if isinstance(message, messages.Output) and self._echo_output:
            write_lines(sys.stderr, world, message.lines)
        if isinstance(message, messages.Output | messages.Unfinished) and not self._relay_output:
            return
        now = time.monotonic()
        if isinstance(message, messages.FilePart) and not isinstance(message, messages.LogPart):
            self._files_until = self._files_until or now + FILES_SECONDS
        self._outbox.put(message, wait_seconds=(self._files_until or now) - now)

    def send_value(self, value: bytes) -> str:
        """Sends the rank's pickled value, as fast as the driver takes it.

        Returns:
            Its SHA-256, once the driver has all of it.

        Raises:
            OSError: The driver has no room for it, or is not heard any more.
        """
        for start in range(0, len(value), PART_BYTES):
            part = messages.ValuePart(value[start : start + PART_BYTES], start == 0)
            self._outbox.put(part, wait_seconds=None)
        sent = messages.ValueSent(len(value), hashlib.sha256(value).hexdigest())
        while not self._outbox.is_closed:
            self._outbox.put(sent)
            with suppress(queue.Empty):
                if problem := self._answers.get(timeout=ASK_SECONDS):
                    raise OSError(problem)
                return sent.sha256
        raise ConnectionError(f"the driver at {self._place} is not heard any more")

    @property
    def fence(self) -> str:
        """Why the worker was ended since the driver was not heard; else empty."""
        if not self._is_fenced:
            return ""
        return f"had not heard the driver for {self._fence_seconds:g} s"

    @property
    def is_connected(self) -> bool:
        """Whether the driver hears us; waits for the first connection, or until it is late."""
        self._settled.wait(CONNECT_SECONDS + 1)
        return self._connected.is_set()

    def driver_has_heard(self) -> bool:
        """Whether the driver has answered a failure: it then tells all agents to stop."""
        return self.is_connected and self._stop_heard.wait(ANSWER_SECONDS)

    def notes(self, world: World) -> tuple[str, ...]:
        """Closes, and returns what the driver should say about this connection after the run."""
        self.close()
        rank = f"rank {world.rank}"
        notes = []
        if self._heard_at is None:
            if self._channel.host:  # Else the driver has said so before the ranks started.
                notes.append(self._unreached(world))
        elif lines := self._outbox.lost_lines:
            notes.append(
                f"{lines} lines of {rank} were not shown, since the driver could not keep up"
            )
        if lost := self._outbox.lost_reports:
            notes.append(
                f"{lost} reports of {rank} (metrics, parts of files) may be lost: the driver did "
                "not confirm them"
            )
        return tuple(notes)

    def _unreached(self, world: World) -> str:
        return (
            f"rank {world.rank} on host {world.place} could not reach the driver at {self._place}, "
            "so its output was not shown: let its host connect to that port "
            "(RunConfig.port_range says which are taken), or name a network that both have with "
            "RunConfig.network_interface"
        )

    def close(self) -> None:
        """Sends what is queued, as far as the driver takes it in time; the rest is dropped."""
        if self._is_closing:
            return
        if self.is_connected:
            self._outbox.wait_until_confirmed(FLUSH_SECONDS)
        self._is_closing = True
        self._outbox.close()
        self._sender.join(FLUSH_SECONDS)
        self._outbox.abandon()

    def _send(self) -> None:
        """Connects, again and again where that is worth it, and sends what there is."""
        late_at = time.monotonic() + CONNECT_SECONDS
        try:
            if not self._channel.host:  # The driver knows that we do not reach it.
                self._on_assignment(messages.Gather())
                return
            for turn in itertools.count():
                if turn > 1:  # Try the second time at once: the connection may have been reset.
                    time.sleep(RECONNECT_SECONDS)
                try:
                    address = (self._channel.host, self._channel.port)
                    with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
                        self._talk(connection)
                    return
                except (OSError, EOFError, ValueError) as error:
                    if not self._settled.is_set() and time.monotonic() > late_at:
                        tell(
                            f"partition {self._partition} does not reach the "
                            f"driver at {self._place} ({error}); the run goes on, and is not "
                            "shown on the driver until it does."
                        )
                        self._settled.set()
                        self._on_assignment(messages.Gather())
                if self._is_closing or self._is_cut_off():
                    return
        finally:
            self._outbox.close()
            self._settled.set()

    def _is_cut_off(self) -> bool:
        """Ends the worker if the driver has not been heard for too long."""
        if self._heard_at is None or time.monotonic() - self._heard_at < self._fence_seconds:
            return False
        if not self._stop_heard.is_set():
            self._is_fenced = True
            self._on_stop(False)
        return True

    def _talk(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # As the driver's end.
        nonce = bytes(receive_exactly(connection, NONCE_BYTES))
        outgoing = FrameCodec(self._channel.key, nonce, b"agent")
        incoming = FrameCodec(self._channel.key, nonce, b"driver")
        connection.sendall(outgoing.seal(*encode(self._hello)))
        # Only the driver can seal an answer, so another listener there is recognised.
        self._hear(*receive_frame(connection, incoming))
        # The driver sends a ping every second, and one that takes nothing does not hear us.
        connection.settimeout(None if self._is_patient else self._fence_seconds)
        self._connected.set()
        self._settled.set()
        listening = threading.Thread(
            target=self._listen, args=(connection, incoming), name="sparkdl-log-hear", daemon=True
        )
        listening.start()
        try:
            self._send_all(connection, outgoing, listening)
            # The driver closes once it has read all, which ends the listening thread.
            connection.shutdown(socket.SHUT_WR)
            listening.join(FLUSH_SECONDS)
        finally:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # Wakes the listening thread.
            listening.join()

    def _send_all(
        self, connection: socket.socket, codec: FrameCodec, listening: threading.Thread
    ) -> None:
        """Sends what comes, until the end."""
        self._outbox.begin_again()
        while True:
            if not listening.is_alive() or (not self._is_patient and self._is_cut_off()):
                raise EOFError("the driver is not heard any more")
            message = self._outbox.next(ALIVE_SECONDS)
            try:
                connection.sendall(self._frame(message, codec))
            except OSError:
                if not isinstance(message, messages.Acknowledged):
                    self._outbox.drop(message)
                raise
            if isinstance(message, messages.Ended):
                return

    def _frame(self, message: Message, codec: FrameCodec) -> bytes:
        """Seals a message; one that is too large must not stand in the way of those after it."""
        try:
            return codec.seal(*encode(message))
        except ValueError:
            self._outbox.drop(message)
            nothing: Message = messages.Alive()
            if isinstance(message, messages.Acknowledged):  # Its number is to be confirmed as well.
                nothing = messages.Acknowledged(number=message.number)
            return codec.seal(*encode(nothing))

    def _send_stacks(self) -> None:
        """Takes seconds, in which the driver must be heard."""
        self._outbox.put(self._on_stacks())

    def _listen(self, connection: socket.socket, codec: FrameCodec) -> None:
        try:
            while True:
                self._hear(*receive_frame(connection, codec))
        except (OSError, EOFError, ValueError):
            pass
        finally:
            self._connected.clear()  # The driver has closed the connection, or is gone.
            self._outbox.put(messages.Alive())  # Wakes the sender.

    def _hear(self, values: dict[str, Any], payload: bytes) -> None:
        message = decode(values, payload, messages.DRIVER_TO_AGENT)
        self._heard_at = time.monotonic()
        match message:
            case messages.Hosts(addresses):
                self._hosts.update(addresses)
            case messages.Assigned(assignment):
                self._on_assignment(replace(assignment, peers=tuple(sorted(self._hosts))))
            case messages.Gather() | messages.Superfluous():
                self._on_assignment(message)
            case messages.Stop(will_restart):
                self._stop_heard.set()
                self._on_stop(will_restart)
            case messages.RequestStop(reason):
                self._on_request(reason)
            case messages.Preempt(reason):
                self._on_preempt(reason)
            case messages.RequestGrowth(reason):
                self._on_growth(reason)
            case messages.AskStacks():
                threading.Thread(target=self._send_stacks, daemon=True).start()
            case messages.ValueTaken(problem):
                self._answers.put(problem)
            case messages.Confirmed(number):
                self._outbox.confirm(number)
