"""The listening sockets of a rendezvous: one for all, and one behind it where there is a relay."""

from __future__ import annotations

import socket
from typing import NamedTuple


class Listeners(NamedTuple):
    """The sockets of a rendezvous."""

    public: socket.socket
    """The socket whose port is published."""
    private: socket.socket | None = None
    """The socket behind it that rank 0's worker serves; None without a relay."""

    @property
    def port(self) -> int:
        """The port that is published."""
        return int(self.public.getsockname()[1])

    def close(self) -> None:
        """Closes this process's copies. May be called twice."""
        for listener in self:
            if listener is not None:
                listener.close()
