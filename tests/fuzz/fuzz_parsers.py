"""Coverage-guided fuzzing of what reads from sockets. Not a part of ``make test``; by hand:

    pip install atheris
    python tests/fuzz/fuzz_parsers.py -runs=200000

It fails on any exception but the parsers' own, and on a frame that is taken without the key.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports():
    from sparkdl_runner import frames, log_server, rendezvous

KEY, NONCE = bytes(range(32)), bytes(frames.NONCE_BYTES)
_LOOP = asyncio.new_event_loop()


def one_input(data: bytes) -> None:
    """Gives one input to both parsers."""
    try:
        method, path, length = rendezvous.parse_request(data)
        assert isinstance(method, str)
        assert path.startswith("/")
        assert length >= 0
    except ValueError:
        pass

    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        try:
            await log_server._read_frame(reader, frames.FrameCodec(KEY, NONCE, b"agent"))
        except (ValueError, EOFError):
            return
        raise AssertionError("a frame was taken that nobody sealed")

    _LOOP.run_until_complete(read())


def seeds() -> list[bytes]:
    """What peers really send, to begin from."""
    sealed = frames.FrameCodec(bytes(32), NONCE, b"agent")  # with a key that is not the run's
    return [
        b"PUT /global/rank_0 HTTP/1.1\r\nContent-Length: 5\r\nHost: h\r\n\r\n",
        b"GET /local_host0/1 HTTP/1.1\r\nAccept: */*\r\n\r\n",
        b"DELETE /cross_0/1 HTTP/1.0\r\n\r\n",
        sealed.seal({"kind": "hello", "partition": 0, "host": "h"}),
        sealed.seal({"kind": "stop"}),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()):
            (Path(corpus) / str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, corpus], one_input)
        atheris.Fuzz()
