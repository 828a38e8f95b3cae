"""What a worker prints comes whole, in order, and nowhere with a secret."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sparkdl_runner.base.redaction import LONGEST_SHAPE_BYTES, Redactor
from sparkdl_runner.launch.agent import output_relay
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
    assert log.path.read_bytes() == b"100%\nb\xff\n"


def test_a_bar_that_lasts_for_hours_is_kept_as_its_last_state(log: RankLog) -> None:
    states = [b"\r%6d of 999999 |" % number + b"#" * 100 for number in range(1000)]
    pieces, _ = relayed(log, *states, b"\n")
    log.close()
    assert pieces == [[states[-1][1:].decode()]]
    assert log.path.read_bytes() == states[-1][1:] + b"\n"


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


class Looks:
    """What is shown of a line that has not ended, with a clock that the test sets."""

    def __init__(self, log: RankLog, secrets: Sequence[str] = ()) -> None:
        self.now = 0.0
        self.shown: list[tuple[float, str]] = []
        self.lines: list[str] = []
        self._seen = threading.Semaphore(0)
        self._relay = OutputRelay(
            show=self.lines.extend,
            log=log,
            redact=Redactor(secrets),
            printed=self._seen.release,
            show_unfinished=lambda text: self.shown.append((self.now, text)),
            now=lambda: self.now,
        )
        output, self._input = os.pipe()
        self._thread = threading.Thread(target=self._relay.run, args=(output, threading.Event()))
        self._thread.start()

    def write(self, at: float, text: str) -> None:
        """Writes at a time of the clock, and waits until that was read and looked at."""
        self.now = at
        os.write(self._input, text.encode())
        assert self._seen.acquire(timeout=120)
        os.write(self._input, b"\r")  # Read only once all before it has been looked at.
        assert self._seen.acquire(timeout=120)

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + 120
        while not is_so():
            assert time.monotonic() < until
            time.sleep(0.01)

    def end(self) -> None:
        os.close(self._input)
        self._thread.join(120)
        assert not self._thread.is_alive()


def test_a_line_that_has_not_ended_is_shown_once_a_second(log: RankLog) -> None:
    looks = Looks(log)
    for tenth in range(25):
        looks.write(tenth / 10, f"\r{tenth}%|#    ")
    looks.end()
    log.close()
    assert looks.shown == [(0.0, "0%|#    "), (1.0, "10%|#    "), (2.0, "20%|#    "), (2.4, "")]
    assert looks.lines == ["24%|#    "], "its last state is the line"


def test_one_that_has_ended_is_not_shown_for_longer(log: RankLog) -> None:
    looks = Looks(log)
    looks.write(0.0, "\r10%")
    looks.write(0.1, "\r100%\n")
    looks.wait_for(lambda: looks.shown[-1] == (0.1, ""))
    assert looks.lines == ["100%"]
    looks.write(0.2, "next")
    looks.write(1.2, "\rnext one")
    looks.end()
    log.close()
    assert looks.shown[2:] == [(1.2, "next one"), (1.2, "")]


def test_a_line_that_is_printed_word_by_word_is_shown_once_it_is_whole(
    log: RankLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_relay, "OUTPUT_POLL_MILLISECONDS", 120_000)
    looks = Looks(log)
    for word in (b"one ", b"two ", b"three\n"):
        os.write(looks._input, word)
        assert looks._seen.acquire(timeout=120)
    looks.end()
    log.close()
    assert looks.shown == []
    assert looks.lines == ["one two three"]


def test_a_line_that_pauses_is_shown(log: RankLog) -> None:
    looks = Looks(log)
    os.write(looks._input, b"Loading ...")
    looks.wait_for(lambda: looks.shown == [(0.0, "Loading ...")])
    looks.end()
    log.close()


def test_a_line_that_waits_for_its_end_is_shown_without_the_start_of_a_secret(
    log: RankLog,
) -> None:
    looks = Looks(log, secrets=["hunter2-hunter2"])
    looks.write(0.0, "the key is hunter2-")
    looks.write(1.0, "\rthe key is hunter2-hunter2, so")
    looks.end()
    log.close()
    assert looks.shown == [(0.0, "the key is "), (1.0, "the key is [redacted], so"), (1.0, "")]


def test_a_bar_below_another_is_a_state_of_the_same_line(log: RankLog) -> None:
    looks = Looks(log)
    looks.write(0.0, "\repochs 0/2")
    for second in range(1, 4):  # As tqdm writes them, in three parts.
        looks.write(second, "\n")
        looks.write(second, f"\rbatches {second}/3")
        looks.write(second, "\x1b[A")
    looks.write(4.0, "\repochs 2/2\n")
    looks.write(4.0, "done\n")
    looks.end()
    log.close()
    assert looks.lines == ["epochs 2/2", "done"]
    assert [text for _, text in looks.shown] == [
        *("epochs 0/2", "batches 1/3", "batches 2/3", "batches 3/3", "epochs 2/2", ""),
    ]
