from __future__ import annotations

import os
import socket
import time

from sparkdl_runner.launch.worker import unanswered
from sparkdl_runner.launch.worker.unanswered import unanswered_addresses

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  to inode\n"
)


def test_a_connection_that_is_answered_is_not_named():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as connection:
        connection.sendall(b"x")
        deadline = time.monotonic() + 120
        while unanswered_addresses(os.getpid()):  # A busy kernel's own answer may be late.
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_addresses_are_those_to_which_a_socket_of_the_process_sends_again(monkeypatch, tmp_path):
    line = "   0: 0100000A:1F90 {}:1F90 {} 00000010:00000000 01:00000010 {} 0 0 {} 1\n"
    mapped = "0000000000000000FFFF00000400000A"
    rows = [
        line.format("0200000A", "01", "00000003", "77"),
        line.format("0300000A", "01", "00000000", "77"),  # It has been answered.
        line.format("0500000A", "06", "00000003", "77"),  # It is closed.
        line.format("0600000A", "01", "00000003", "78"),  # Another process's.
    ]
    tables = {"tcp": HEAD + "".join(rows), "tcp6": HEAD + line.format(mapped, "02", "1", "77")}
    folder = tmp_path / "42" / "net"
    folder.mkdir(parents=True)
    for name, text in tables.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(unanswered, "_sockets", lambda pid: {"77"})
    monkeypatch.setattr(unanswered, "PROC", tmp_path)
    assert unanswered_addresses(42) == ["10.0.0.2", "10.0.0.4"]
