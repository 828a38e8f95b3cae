"""What a worker prints comes whole, in order, and nowhere with a secret."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkdl_runner.base.redaction import LONGEST_SHAPE_BYTES, Redactor
from sparkdl_runner.launch.agent.output_relay import MAX_LINE_CHARACTERS, TAIL_LINES, OutputRelay
from sparkdl_runner.launch.agent.rank_log import RankLog


def relayed(
    log: RankLog, *chunks: bytes, secrets: Sequence[str] = ("hunter2-hunter2",)
) -> tuple[list[list[str]], OutputRelay]:
    """Relays what is written in these pieces, each of which is read before the next is written."""
    shown: list[list[str]] = []
    read = threading.Semaphore(0)
    relay = OutputRelay(show=shown.append, log=log, redact=Redactor(secrets), printed=read.release)
    output, input_end = os.pipe()
    thread = threading.Thread(target=relay.run, args=(output, threading.Event()))
    thread.start()
    for chunk in chunks:
        os.write(input_end, chunk)
        assert read.acquire(timeout=120)
    os.close(input_end)
    thread.join(120)
    assert not thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(output)
    return shown, relay


@pytest.fixture
def log(tmp_path: Path) -> RankLog:
    return RankLog(tmp_path, 0)


def test_lines_are_shown_whole_and_a_secret_in_two_pieces_is_hidden(log: RankLog) -> None:
    pieces, relay = relayed(log, b"one\ntw", b"o\nkey hunter2-", b"hunter2\nlast words")
    log.close()
    assert pieces == [["one"], ["two"], ["key [redacted]"], ["last words"]]
    assert list(relay.tail) == ["one", "two", "key [redacted]", "last words"]
    assert log.path.read_bytes() == b"one\ntwo\nkey [redacted]\nlast words"


def test_what_torch_says_of_an_address_without_a_name_is_in_the_log_alone(log: RankLog) -> None:
    noise = (
        b"[W1128 09:36:44.934077191 socket.cpp:207] [c10d] The hostname of the client socket "
        b"cannot be retrieved. err=-3\n"
    )
    pieces, relay = relayed(log, b"one\n" + noise, noise, b"two\n")
    log.close()
    assert pieces == [["one"], ["two"]]
    assert list(relay.tail) == ["one", "two"]
    assert log.path.read_bytes() == b"one\n" + noise + noise + b"two\n"


def test_of_a_bar_that_is_drawn_again_the_last_state_counts(log: RankLog) -> None:
    pieces, _ = relayed(log, b"10%\r50%\r100%\r\nb\xff\n")
    log.close()
    assert pieces == [["100%", "b\ufffd"]]


def test_a_line_without_end_is_shown_in_pieces_and_the_tail_is_short(log: RankLog) -> None:
    pieces, relay = relayed(log, b"x" * (MAX_LINE_CHARACTERS + 1), b"y\n", b"z\n" * 100)
    log.close()
    kept = LONGEST_SHAPE_BYTES
    assert pieces[:2] == [["x" * (MAX_LINE_CHARACTERS + 1 - kept)], ["x" * kept + "y"]]
    assert list(relay.tail) == ["z"] * TAIL_LINES


@pytest.mark.parametrize("before", range(MAX_LINE_CHARACTERS - 20, MAX_LINE_CHARACTERS + 3, 2))
@pytest.mark.parametrize("secret", [b"hunter2-hunter2", b"://u:" + b"p" * 400 + b"@h"])
def test_a_secret_where_a_long_line_is_cut_is_hidden(
    log: RankLog, before: int, secret: bytes
) -> None:
    half = len(secret) // 2
    line = b"x" * before + secret + b"x" * 10
    pieces, _ = relayed(log, line[: before + half], line[before + half :] + b"\n")
    log.close()
    assert log.path.read_bytes().count(b"[redacted]") == 1
    shown = "".join(piece for (piece,) in pieces)
    assert "hunter" not in shown
    assert "p" not in shown


def test_a_line_is_not_cut_before_it_is_longer_than_twice_the_longest_secret(
    log: RankLog,
) -> None:
    secret = b"s" * MAX_LINE_CHARACTERS
    line = b"x" * (MAX_LINE_CHARACTERS + 1)
    pieces, _ = relayed(log, line, b"y", secret + b"\n", secrets=[secret.decode()])
    log.close()
    assert log.path.read_bytes() == line + b"y[redacted]\n"
    assert pieces == [["x" * MAX_LINE_CHARACTERS]]


def test_each_line_of_a_secret_of_several_lines_is_hidden() -> None:
    redact = Redactor(["-----BEGIN KEY-----\nMIIEvAIBADANBg\nkqhkiG9w0BAQ\n"])
    assert redact.raw(b"a kqhkiG9w0BAQ\n") == b"a [redacted]\n"


def test_silence_ends_it_once_the_worker_is_gone_though_someone_holds_the_pipe(
    log: RankLog,
) -> None:
    pieces: list[list[str]] = []
    is_over = threading.Event()
    relay = OutputRelay(show=pieces.append, log=log, redact=Redactor([]), printed=lambda: None)
    output, input_end = os.pipe()
    os.write(input_end, b"kept")
    is_over.set()
    relay.run(output, is_over)
    os.close(input_end)
    log.close()
    assert pieces == [["kept"]]
