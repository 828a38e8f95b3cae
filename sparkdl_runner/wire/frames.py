"""The frames of the log channel: sealed so that nobody else can make, repeat or reorder them.

A frame is ``length (4 bytes) | HMAC-SHA256 (32 bytes) | JSON``. The MAC covers the connection's
nonce (sent by the driver when it accepts), the direction, the frame's number and the text, under a
key that exists for one attempt only and travels in Spark's closure; so frames cannot be forged,
replayed, reordered or reflected. The first bad frame ends its connection. Nothing is unpickled.
"""

from __future__ import annotations

import hmac
import json
import struct
from typing import Any

NONCE_BYTES = 16
MAC_BYTES = 32
MAX_FRAME_BYTES = 1024 * 1024
LENGTH = struct.Struct(">I")


class FrameCodec:
    """Seals and opens the frames of one direction of one connection."""

    def __init__(self, key: bytes, nonce: bytes, direction: bytes) -> None:
        self._key = key
        self._prefix = nonce + direction
        self._number = 0

    def seal(self, message: dict[str, Any]) -> bytes:
        """Makes the next frame.

        Raises:
            ValueError: The message is too large.
        """
        text = json.dumps(message).encode()
        if len(text) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(text)} bytes is over the limit {MAX_FRAME_BYTES}")
        return LENGTH.pack(len(text)) + self._mac(text) + text

    def open(self, mac: bytes, text: bytes) -> dict[str, Any]:
        """Checks and decodes the next frame.

        Raises:
            ValueError: It was not sealed as this frame of this connection, or is no JSON object.
        """
        if not hmac.compare_digest(mac, self._mac(text)):
            raise ValueError("the frame's MAC is wrong")
        try:
            message = json.loads(text)
        except RecursionError:
            raise ValueError("the frame's JSON is nested too deeply") from None
        if not isinstance(message, dict):
            raise ValueError("the frame is no JSON object")
        return message

    def _mac(self, text: bytes) -> bytes:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        return hmac.digest(self._key, self._prefix + number + text, "sha256")
