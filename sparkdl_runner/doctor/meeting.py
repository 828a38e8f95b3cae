"""How tasks of an ordinary stage meet, as barrier tasks do by themselves: by way of the driver."""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from sparkdl_runner.doctor.stage import TOKEN_BYTES
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig

# As long as a run waits for slots.
WAIT_SECONDS = RunConfig().slot_wait_seconds
MOST_BYTES = 64 * 1024


class Meeting:
    """Tells all tasks what each has told of itself, once all have come or the time is over.

    Args:
        listener: A listening socket on the driver's address; closed by ``close``.
        token: What a task says first.
        tasks: How many there are.
    """

    def __init__(self, listener: socket.socket, token: bytes, tasks: int) -> None:
        self._listener, self._token, self._tasks = listener, token, tasks
        self._closed = False
        self.came = 0
        """How many have come in time."""
        listener.settimeout(0.2)
        self._thread = threading.Thread(target=self._serve, name="sparkdl-meeting", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def answers(
        self, collect: Callable[[], Iterable[str]], cancel: Callable[[], object]
    ) -> dict[str, Any]:
        """Runs the stage.

        Args:
            collect: Runs it, and returns the tasks' answers in JSON.
            cancel: Ends it, where no executor comes.

        Returns:
            ``hosts``: an answer of each executor; ``tasks``: how many had a slot in time.

        Raises:
            LaunchError: None had.
        """
        is_given_up = False

        def give_up() -> None:
            nonlocal is_given_up
            if not self.came:
                is_given_up = True
                cancel()

        timer = threading.Timer(WAIT_SECONDS, give_up)
        timer.start()
        try:
            hosts = {one["place"]: one for one in map(json.loads, collect())}
        except Exception:
            if not is_given_up:
                raise
            raise LaunchError(
                f"no executor has come within {WAIT_SECONDS:g} s for {self._tasks} tasks that "
                "waited for one"
            ) from None
        finally:
            timer.cancel()
        return {"hosts": list(hosts.values()), "tasks": self.came}

    def close(self) -> None:
        """Stops listening."""
        self._closed = True
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        told: list[str] = []
        waiting: list[socket.socket] = []
        while not self._closed:
            is_over = self.came == self._tasks or time.monotonic() > deadline
            for client in waiting if is_over else ():
                _answer(client, told)
            waiting = [] if is_over else waiting
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            if (text := self._heard(client)) is None:
                client.close()
            elif is_over:
                _answer(client, None)
            else:
                told.append(text)
                waiting.append(client)
                self.came += 1

    def _heard(self, client: socket.socket) -> str | None:
        try:
            client.settimeout(1.0)
            if hmac.compare_digest(client.recv(TOKEN_BYTES, socket.MSG_WAITALL), self._token):
                with client.makefile("rb") as lines:
                    return lines.readline(MOST_BYTES).decode().strip()
        except (OSError, ValueError):
            pass
        return None


def _answer(client: socket.socket, told: list[str] | None) -> None:
    with client:
        try:
            client.sendall(json.dumps(told).encode() + b"\n")
        except OSError:
            return  # It has gone.
