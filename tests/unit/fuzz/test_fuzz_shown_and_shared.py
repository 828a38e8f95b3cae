"""What servers, other drivers and other users of a folder wrote: names, texts, tags and files."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import time
from dataclasses import asdict
from typing import Any
from unittest import mock

from hostile_bytes import DEEP, JSON_TOKENS, bounded, changed_bytes, changed_json, fuzz, plain
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.base.foreign_file import ForeignFileError, build, parse_json
from sparkdl_runner.base.foreign_name import is_relative, is_run_id
from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import line, lines
from sparkdl_runner.checkpoint.directory.listing import (
    FENCES,
    attempts_in,
    claim_file,
    fence_file,
    is_claimed_by_others,
    read_fence,
    written,
)
from sparkdl_runner.checkpoint.directory.sealed import seal, unseal
from sparkdl_runner.checkpoint.errors import DamageError
from sparkdl_runner.data.dataset.lake.paths import OutsideError, path_in_table
from sparkdl_runner.data.dataset.lease import Lease as FolderLease
from sparkdl_runner.estimator.saved_values import decode
from sparkdl_runner.launch.agent.host import ec2_notice
from sparkdl_runner.launch.driver.spark import asked
from sparkdl_runner.launch.wire.short_answer import Answer
from sparkdl_runner.tensors import saved
from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Output
from sparkdl_runner.tensors.predictor import Description
from sparkdl_runner.tensors.saved import UntrustedModelError
from sparkdl_runner.tracking.run import undelivered
from sparkdl_runner.tracking.run.journal import Journal
from sparkdl_runner.tracking.run.opening.lease import ALIVE_TAG, HOLDER_TAG, Holder, Lease

TEXTS = st.text() | st.text(
    st.sampled_from("\x1b[2Jm;\x9b\r\n\t\x07]52;c\\\u2028\u202e\ud800ar "), max_size=40
)
PREFIXES = ("[rank ", "sparkdl_runner: ")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile("\x1b\\[[0-9;]*m")


@fuzz
@given(st.lists(TEXTS | st.sampled_from(PREFIXES), max_size=5).map("".join))
def test_texts_on_a_console(text):
    with bounded():
        one, coloured, several = line(text), line(text, colours=True), lines(text)
    for shown in (one, coloured, several):
        shown.encode()
    assert not CONTROL.search(one)
    assert not CONTROL.search(COLOUR.sub("", coloured))
    assert "\n" not in one + coloured
    assert not CONTROL.search(several)
    assert not any(row.startswith(PREFIXES) for row in several.split("\n")[1:])


NAMES = st.text(max_size=300) | st.lists(
    st.sampled_from(["..", ".", "/", "a", "\\", ":", "\0", "\ud800", "a" * 200, "-", "\n"]),
    max_size=9,
).map("".join)


@fuzz
@given(NAMES)
def test_names_of_runs_and_files(name):
    with bounded():
        is_name, is_path = is_run_id(name), is_relative(name)
    if is_name:
        assert re.fullmatch(r"[0-9A-Za-z-]{1,128}", name)
    if is_path:
        assert os.path.normpath(f"/mine/{name}") == f"/mine/{name}"
        assert not CONTROL.search(name)


@fuzz
@given(
    NAMES | st.sampled_from(["file:/t/%2e%2e/x", "s3://t/../x", "%2Fetc", "/t/%00"]), st.booleans()
)
def test_paths_that_tables_list(listed, is_encoded):
    with bounded(OutsideError, ValueError):
        path = path_in_table(listed, "file:///t", is_encoded=is_encoded)
        assert os.path.normpath(f"/t/{path}") == f"/t/{path}"


ENTRIES = [
    ["metric", "loss", 0.5, 1, 2, {"model_id": "m"}],
    ["param", "lr", "1"],
    ["tag", "a", "b"],
]


def as_lines(entries: Any) -> bytes:
    return b"".join(plain(one) + b"\n" for one in entries) if isinstance(entries, list) else b""


def test_entries_beside_checkpoints(tmp_path):
    path = tmp_path / "undelivered" / "a.jsonl"
    path.parent.mkdir()

    @fuzz
    @given(
        changed_bytes([as_lines(ENTRIES), *DEEP], [*JSON_TOKENS, b"\n"])
        | changed_json(ENTRIES, as_lines)
    )
    def run(content: bytes) -> None:
        path.write_bytes(content)
        with bounded():
            entries = undelivered.read(path.as_uri())
            journal = Journal({}, {}, Redactor(["hunter2-hunter2"]))
            journal.begin_attempt(0)
            for entry in journal.admit(entries):
                assert json.loads(json.dumps(entry))[0] in ("metric", "param", "tag")

    run()


HOLDER = json.loads(Lease().entries(now=1)[0][2])
ALIVE = (
    st.just("1")
    | st.sampled_from(["1", "", "9" * 400, "-1", "\u0661", "1e9", "nan"])
    | st.text(max_size=5)
)


@fuzz
@given(
    changed_bytes([plain(HOLDER), *DEEP], JSON_TOKENS) | changed_json(HOLDER, plain),
    ALIVE,
)
def test_tags_of_the_driver_that_holds_a_run(holder, alive):
    tags = {HOLDER_TAG: holder.decode(errors="surrogateescape"), ALIVE_TAG: alive}
    with bounded():
        found = Holder.of(tags, time.time())
        Lease().held_by_another(tags)
        if found is not None:
            assert str(found)
            assert 0 < found.renew_seconds < 1e6
            assert isinstance(found.has_let_go, bool)
            assert isinstance(found.is_late, bool)


FOLDER_LEASE = asdict(FolderLease(user="u", hostname="h", pid=1, ends_unix_seconds=1.5))


@fuzz
@given(changed_bytes([plain(FOLDER_LEASE), *DEEP], JSON_TOKENS) | changed_json(FOLDER_LEASE, plain))
def test_leases_of_folders(text):
    with bounded(ForeignFileError, json.JSONDecodeError):
        assert isinstance(build(FolderLease, parse_json(text)).is_over, bool)


TOKEN = "0" * 32
FENCE = unseal(seal({"attempt": 3, "token": TOKEN, "committed": ["step-1/attempt-0"]}), "fence")


class OneFile:
    """A storage of one file."""

    is_local = True
    piece_bytes = 1 << 20
    retry_seconds = 0.0

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self, name: str) -> Any:
        return io.BytesIO(self._content)


def sealed(value: Any) -> bytes:
    try:
        return seal(value)
    except (TypeError, AttributeError):
        return plain(value)


@fuzz
@given(changed_bytes([seal(FENCE), *DEEP], JSON_TOKENS) | changed_json(FENCE, sealed))
def test_fences_of_attempts(content):
    storage: Any = OneFile(content)
    with bounded(DamageError):
        assert set(map(str, read_fence(storage, 3)["committed"])) is not None


FILES = [
    f"{FENCES}/{fence_file(3)}",
    f"{FENCES}/{claim_file(3, TOKEN)}",
    f"{FENCES}/attempt-{'9' * 20}.json",
    f"{FENCES}/attempt-\u0663.json",
    "step-1/attempt-0/manifest.json",
    "step-../attempt-0/x",
]


@fuzz
@given(
    st.lists(st.sampled_from(FILES) | NAMES | TEXTS.map(lambda text: f"{FENCES}/attempt-3.{text}"))
)
def test_names_of_attempts_and_claims(names):
    with bounded():
        assert all(0 <= attempt < 10**18 for attempt in attempts_in(names))
        others = set(names) - {f"{FENCES}/{fence_file(3)}", f"{FENCES}/{claim_file(3, TOKEN)}"}
        is_claimed = any(name.startswith(f"{FENCES}/attempt-3.") for name in others)
        assert is_claimed_by_others(names, 3, TOKEN) == is_claimed
        assert all(str(name) for name in written(names))


NOTICE = {"action": "terminate", "time": "2026-11-23T21:00:00Z"}


@fuzz
@given(changed_bytes([plain(NOTICE), *DEEP], JSON_TOKENS) | changed_json(NOTICE, plain))
def test_notices_of_ec2(body):
    with (
        mock.patch.object(ec2_notice, "ask", return_value=Answer(200, body)),
        mock.patch.object(ec2_notice.SpotNotice, "_run"),
        bounded(OSError, ValueError, http.client.HTTPException),
    ):
        told = ec2_notice.SpotNotice("http://host", print)._notice()
        assert told is not None
        assert len(told) <= 150


PAGE = {
    "workers": [
        {
            "cores": 2,
            "memory": 1024,
            "state": "ALIVE",
            "resources": {"gpu": {"name": "gpu", "addresses": ["0"]}},
        }
    ]
}


@fuzz
@given(changed_bytes([plain(PAGE), *DEEP], JSON_TOKENS) | changed_json(PAGE, plain))
def test_pages_of_masters(body):
    with mock.patch.object(asked, "ask", return_value=Answer(200, body)), bounded():
        assert isinstance(asked._workers("spark://host:7077", 8080), list)


SAVED = {"dict": [["a", {"tuple": [1, 2.5, None]}], ["b", ["x"]]]}


@fuzz
@given(changed_json(SAVED, plain))
def test_saved_params(text):
    with bounded(UntrustedModelError, ValueError):
        decode("epochs", json.loads(text), trust=False)


def test_descriptions_of_saved_networks(tmp_path):
    from torch import nn

    column = Column(name="x", kind="number", dtype="float32", shape=())
    description = Description(
        inputs=Inputs({"": ("x",)}), columns=(column,), outputs={"y": Output("regression")}
    )
    saved.save(tmp_path, nn.Linear(1, 1).eval(), description=description, about={"names": {}})
    file = tmp_path / saved.ABOUT_FILE
    good = json.loads(file.read_text())

    @fuzz
    @given(changed_bytes([plain(good), *DEEP], JSON_TOKENS) | changed_json(good, plain))
    def run(text: bytes) -> None:
        file.write_bytes(text)
        with bounded(ValueError):
            saved.read_about(tmp_path)
        with bounded(UntrustedModelError, ValueError):
            saved.load(tmp_path, trust=False, how_to_trust="")

    run()
