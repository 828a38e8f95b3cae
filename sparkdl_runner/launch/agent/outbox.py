"""The messages that an agent has yet to send to the driver: a bounded queue."""

from __future__ import annotations

import itertools
import threading
from collections import deque

from sparkdl_runner.launch.wire.messages import (
    REFUSED,
    Acknowledged,
    Alive,
    Ended,
    LogPart,
    Message,
    Output,
    Placed,
    PlainValue,
    Text,
    Unfinished,
    ValuePart,
)


class Outbox:
    """Messages in the order in which they are sent. Used by any number of threads.

    An acknowledged message stays here until the driver has confirmed it, as the connection that
    carried it may break.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._unconfirmed: deque[Acknowledged] = deque()
        self._numbers = itertools.count(1)
        self._placed: Placed | None = None
        self._is_closed = False
        self._num_refused = 0
        self.lost_lines = 0
        """How many lines were dropped."""

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more messages."""
        return self._is_closed

    @property
    def lost_reports(self) -> int:
        """How many acknowledged messages the driver has not confirmed, or were dropped."""
        return self._num_refused + sum(map(_is_report, self._unconfirmed))

    def place(self, placed: Placed) -> None:
        """Takes the message that comes first on each connection."""
        with self._changed:
            self._placed = placed
            self._queue.appendleft(placed)
            self._changed.notify_all()

    def put(self, message: Message, *, wait_seconds: float | None = 0.0) -> None:
        """Takes a message, or drops it if there is no room for it.

        Args:
            message: The message.
            wait_seconds: How long an acknowledged message may wait for room; None for no limit.
        """
        with self._changed:
            if isinstance(message, Unfinished):
                self._queue = deque(
                    waiting for waiting in self._queue if not isinstance(waiting, Unfinished)
                )
            has_room = self._changed.wait_for(
                lambda: self._is_closed or self._num_waiting(message) < message.most_waiting,
                None if wait_seconds is None else max(0.0, wait_seconds),
            )
            if self._is_closed or not has_room:
                self.lost_lines += _num_lines(message)
                if isinstance(message, LogPart):
                    message.number = REFUSED
                else:
                    self._num_refused += _is_report(message)
                return
            if isinstance(message, Acknowledged):
                message.number = next(self._numbers)
                self._unconfirmed.append(message)
            self._queue.append(message)
            self._changed.notify_all()

    def next(self, seconds: float) -> Message:
        """Waits for the next message to send: a sign of life after so long, the last at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed, seconds)
            if self._queue:
                return self._queue.popleft()
            return Ended() if self._is_closed else Alive()

    def begin_again(self) -> None:
        """Queues again, for a new connection, what none has carried for certain."""
        with self._changed:
            queued = {
                message.number for message in self._queue if isinstance(message, Acknowledged)
            }
            carried = [message for message in self._unconfirmed if message.number not in queued]
            first = [] if self._placed is None else [self._placed]
            rest = [message for message in self._queue if message is not self._placed]
            self._queue = deque([*first, *carried, *rest])

    def confirm(self, number: int) -> None:
        """Forgets the acknowledged messages up to ``number``: they have arrived."""
        with self._changed:
            while self._unconfirmed and self._unconfirmed[0].number <= number:
                self._unconfirmed.popleft()
            self._changed.notify_all()

    def drop(self, message: Message) -> None:
        """Counts a message that was taken and cannot be sent."""
        with self._changed:
            self.lost_lines += _num_lines(message)
            self._num_refused += _is_report(message)

    def wait_until_confirmed(self, seconds: float) -> None:
        """Waits until all acknowledged messages have arrived, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unconfirmed, seconds)

    def close(self) -> None:
        """Takes no more messages; what is here may still be sent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Drops what is still to be sent."""
        with self._changed:
            self.lost_lines += sum(_num_lines(message) for message in self._queue)
            self._queue.clear()

    def _num_waiting(self, message: Message) -> int:
        """How many messages of its kind wait already."""
        if isinstance(message, Acknowledged):
            return len(self._unconfirmed)
        return sum(not isinstance(waiting, Placed | Acknowledged) for waiting in self._queue)


def _is_report(message: Message) -> bool:
    """Whether it must arrive, and nothing else tells whether it has, as for a value."""
    return isinstance(message, Acknowledged) and not isinstance(message, PlainValue | ValuePart)


def _num_lines(message: Message) -> int:
    """How many lines a person misses if a message is dropped."""
    match message:
        case Output(lines):
            return len(lines)
        case Text():
            return 1
        case _:
            return 0
