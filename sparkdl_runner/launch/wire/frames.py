"""The frames of the log channel: sealed, so that others cannot make, repeat or reorder them.

A frame is ``length (4 bytes) | HMAC-SHA256 (32 bytes) | body``, and its body ``length of the JSON
(4 bytes) | JSON | payload``. The MAC covers the connection's nonce (sent by the driver when it
accepts), the direction, the frame's number and the body, under a key that exists for one attempt
only and travels in Spark's closure; so frames cannot be forged, replayed, reordered or reflected.
The first bad frame ends its connection. Nothing is unpickled.
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # A worker receives bytes as well, and needs no asyncio for it.
    import asyncio

NONCE_BYTES = 16
MAC_BYTES = 32
MAX_FRAME_BYTES = 1024 * 1024
LENGTH = struct.Struct(">I")
_HEAD_BYTES = LENGTH.size + MAC_BYTES

Content = tuple[dict[str, Any], bytes]
"""Plain values, and the bytes beside them."""


class FrameCodec:
    """Seals and opens the frames of one direction of one connection."""

    def __init__(self, key: bytes, nonce: bytes, direction: bytes) -> None:
        self._key = key
        self._prefix = nonce + direction
        self._number = 0

    def seal(self, values: dict[str, Any], payload: bytes = b"") -> bytes:
        """Makes the next frame.

        Raises:
            ValueError: It is too large.
        """
        text = json.dumps(values).encode()
        body = LENGTH.pack(len(text)) + text + payload
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(body)} bytes is over the limit {MAX_FRAME_BYTES}")
        return LENGTH.pack(len(body)) + self._mac(body) + body

    def open(self, mac: bytes | bytearray, body: bytes | bytearray) -> Content:
        """Checks and decodes the next frame.

        Raises:
            ValueError: It was not sealed as this frame of this connection, or is no JSON object.
        """
        if not hmac.compare_digest(mac, self._mac(body)):
            raise ValueError("the frame's MAC is wrong")
        end = LENGTH.size + int.from_bytes(body[: LENGTH.size], "big")
        try:
            values = json.loads(body[LENGTH.size : end])
        except RecursionError:
            raise ValueError("the frame's JSON is nested too deeply") from None
        if not isinstance(values, dict):
            raise ValueError("the frame is no JSON object")
        return values, bytes(body[end:])

    def split(self, buffer: bytearray) -> Iterator[Content]:
        """Takes all whole frames off the front of what has come, and decodes them.

        Raises:
            ValueError: The next one is none of this connection.
        """
        begin = 0
        while len(buffer) - begin >= _HEAD_BYTES:
            size = _size(buffer[begin : begin + LENGTH.size])
            body = begin + _HEAD_BYTES
            if len(buffer) < body + size:
                break
            yield self.open(buffer[begin + LENGTH.size : body], buffer[body : body + size])
            begin = body + size
        del buffer[:begin]

    def _mac(self, body: bytes | bytearray) -> bytes:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        return hmac.digest(self._key, self._prefix + number + body, "sha256")


async def read_frame(
    reader: asyncio.StreamReader, codec: FrameCodec, *, most_bytes: int = MAX_FRAME_BYTES
) -> Content:
    """Waits for the next frame.

    Args:
        reader: The connection.
        codec: Opens what comes on it.
        most_bytes: How long the frame's body may be. All of it is kept before it is checked.

    Raises:
        ValueError: It is none of this connection, or too long.
        EOFError: The connection has ended.
    """
    size = _size(await reader.readexactly(LENGTH.size), most_bytes)
    mac = await reader.readexactly(MAC_BYTES)
    return codec.open(mac, await reader.readexactly(size))


def receive_frame(connection: socket.socket, codec: FrameCodec) -> Content:
    """Waits for the next frame, as ``read_frame`` does."""
    size = _size(receive_exactly(connection, LENGTH.size))
    mac = receive_exactly(connection, MAC_BYTES)
    return codec.open(mac, receive_exactly(connection, size))


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """Waits for so many bytes.

    Raises:
        EOFError: The other end has closed the connection.
    """
    data = bytearray(size)
    view = memoryview(data)
    filled = 0
    while filled < size:
        count = connection.recv_into(view[filled:])
        if count == 0:
            raise EOFError("the other end closed the connection")
        filled += count
    return data


def _size(length: bytes | bytearray, most_bytes: int = MAX_FRAME_BYTES) -> int:
    (size,) = LENGTH.unpack(length)
    if size > most_bytes:
        raise ValueError("the frame is over the limit")
    return int(size)
