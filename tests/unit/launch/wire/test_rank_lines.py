from __future__ import annotations

import io

import pytest

from sparkdl_runner.launch.wire.rank_lines import write_lines
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")],
    backend="torch",
)[0]


class ClosedPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [ClosedPipe(), closed()])
def test_a_stream_that_is_gone_ends_no_training(stream):
    write_lines(stream, WORLD, ["lost"])


def test_what_a_stream_cannot_encode_is_escaped():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    write_lines(stream, WORLD, ["ü \ud83d"])
    assert raw.getvalue() == b"[rank 0] \\xfc \\ud83d\n"


def test_a_line_controls_no_terminal_and_passes_for_no_other_rank():
    stream = io.StringIO()
    write_lines(stream, WORLD, ["a\n[rank 1] b\rc", "\x1b[2J\x1b[31mred", "two\nlines\n"])
    assert stream.getvalue() == (
        "[rank 0] a\n[rank 0] [rank 1] b\\rc\n[rank 0] \x1b[31mred\x1b[0m\n"
        "[rank 0] two\n[rank 0] lines\n"
    )
