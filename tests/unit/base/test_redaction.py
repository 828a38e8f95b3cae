"""What is taken for a secret, as SECURITY.md says it, and at what cost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkdl_runner.base.redaction import HIDDEN, Redactor, is_secret_name, secrets_of

SECURITY = (Path(__file__).resolve().parents[3] / "SECURITY.md").read_text()
SECTION = SECURITY.partition("### What is taken for a secret")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| ([^|]+) \| `(.+?)` \| `(.+?)` \|$", SECTION, re.MULTILINE)
NAMES = re.findall(r"`([^`]+)`", SECTION.partition("By its name")[2].partition("\n\n")[0])

# Pieces of the patterns, from which hypothesis makes hostile texts.
PIECES = [
    *["://", ":", "@", "/", "?", "&", "=", '"', "'", "\\", " ", "\n", "a", "0", "A", "%"],
    *["http://", "sig=", "token", "'token': '", '"password": "', "bearer ", "authorization:"],
    *["AKIA", "dapi", "hf_", "ghp_"],
]


def test_there_is_a_table() -> None:
    assert len(ROWS) >= 8
    assert len(NAMES) >= 12


@pytest.mark.parametrize(("what", "shown", "becomes"), ROWS)
def test_what_is_hidden_in_texts(what: str, shown: str, becomes: str) -> None:
    redact = Redactor(["hunter2-hunter2"])
    assert redact(f"a {shown} b") == f"a {becomes} b"
    assert redact.raw(f"a {shown} b".encode()) == f"a {becomes} b".encode()
    assert redact(becomes) == becomes


@pytest.mark.parametrize("name", NAMES)
def test_what_is_hidden_by_its_name(name: str) -> None:
    assert is_secret_name(name)
    assert Redactor().value({"a": [{name: 7}], "b": "c"}) == {"a": [{name: HIDDEN}], "b": "c"}


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer",
        "n_tokens",
        "KEYBOARD",
        "hidden_size",
        "monkey",
        "PWD",
        "OLDPWD",
        "key",
        "partition_key",
        "forward_pass",
        "MLFLOW_TRACKING_URI",
        "passes",
        "author",
        "signal",
    ],
)
def test_innocent_names(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "http://host:80/a@b",
        "abfss://c@a.dfs.core.windows.net/x",
        "loss=0.3",
        "{'use_auth': True}",
        "what? a=b",
        '{"lr": 0.1, "keys": [1]}',
        "the bearer of news",
        "12:30:01 user@host",
    ],
)
def test_innocent_texts(text: str) -> None:
    assert Redactor()(text) == text


def test_a_configuration_is_hidden_at_any_depth_and_stays_what_it_was_otherwise() -> None:
    redact = Redactor(["hunter2-hunter2"])
    settings = {"rate": 0.1, "use_auth": True, "token": None, "x": {"path": "s3://b/x", "n": [1]}}
    assert redact.value(settings) == settings
    assert redact.value({"x": {"token": {"a": 1}, "y": ("b", "s3://b/hunter2-hunter2")}}) == {
        "x": {"token": HIDDEN, "y": ["b", f"s3://b/{HIDDEN}"]}
    }


def test_a_secret_that_is_a_name_is_hidden_too() -> None:
    redact = Redactor(["hunter2-hunter2"])
    assert redact.value({"hunter2-hunter2": {"x": ["hunter2-hunter2"]}}) == {
        HIDDEN: {"x": [HIDDEN]}
    }


def test_the_secrets_of_an_environment() -> None:
    assert secrets_of({"DATABRICKS_TOKEN": "dapi", "HOME": "/root"}) == ["dapi"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (b"key hunt", b"key "),
        (b"key hunter2-hunter", b"key "),
        (b"key hun", b"key hun"),  # Three characters tell nothing.
        (b"key hunter2-hunter2", b"key [redacted]"),  # Whole, though its end could be a beginning.
        (b"key hunter3", b"key hunter3"),
    ],
)
def test_a_secret_that_has_begun_is_left_out(text: bytes, left: bytes) -> None:
    redact = Redactor(["hunter2-hunter2", "of-another"])
    assert redact.without_begun(redact.raw(text)) == left


def test_raw_output_is_redacted_as_text_is() -> None:
    redact = Redactor(["hunter2-hunter2", "hunter2-hunter2-and-more"])
    assert redact("a hunter2-hunter2-and-more b") == f"a {HIDDEN} b"
    assert (
        redact.raw(b"\xff hunter2-hunter2 http://u:p@h") == b"\xff [redacted] http://[redacted]@h"
    )
    assert Redactor(["short"])("short words stay") == "short words stay"


def some(least: int, most: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(PIECES), min_size=least, max_size=most).map("".join)


@settings(max_examples=60, deadline=None)
@given(some(0, 2), some(1, 3))
@example("http://", ":")
@example("bearer", " ")
def test_the_time_grows_with_the_text_and_not_with_its_square(begin: str, again: str) -> None:
    redact = Redactor(["hunter2-hunter2"])

    def seconds(size: int, tries: int) -> Iterator[float]:
        """The processor's time. It is never less than the work takes; what else runs adds to it."""
        text = (begin + again * size)[:size].encode()
        for _ in range(tries):
            began = time.thread_time()
            redact.raw(text)
            yield time.thread_time() - began

    # 16 times the text; its square would take 256 times the time.
    most = 64 * max(min(seconds(8_000, 3)), 1e-4)
    assert any(one < most for one in seconds(16 * 8_000, 30))
