"""Every parser of bytes from outside: a right value or the named error, soon, in little memory."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hostile_bytes import (
    DEEP,
    EXAMPLES,
    JSON_TOKENS,
    bounded,
    changed_bytes,
    changed_json,
    fuzz,
    plain,
)
from hypothesis import given
from hypothesis import strategies as st

from recorded_unischema import SCHEMA
from sparkdl_runner.base.foreign_file import ForeignFileError, build, parse_json
from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.checkpoint import mismatch
from sparkdl_runner.checkpoint.directory import manifest as checkpoint_manifest
from sparkdl_runner.checkpoint.directory import shards, state_files
from sparkdl_runner.checkpoint.directory.files import FileEntry
from sparkdl_runner.checkpoint.directory.reader import CheckpointReader
from sparkdl_runner.checkpoint.directory.sealed import seal, unseal
from sparkdl_runner.checkpoint.errors import DamageError
from sparkdl_runner.data.consumers.petastorm.unischema import Field, read_unischema
from sparkdl_runner.data.dataset.footers import unpack_footer
from sparkdl_runner.data.dataset.leftovers import Owner
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode.codecs import ndarrays
from sparkdl_runner.data.errors import BadRowError, DatasetError
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.launch.backends.exit_barrier import ExitBarrier
from sparkdl_runner.launch.backends.rendezvous import store as store_module
from sparkdl_runner.launch.backends.rendezvous.server import parse_request
from sparkdl_runner.launch.backends.rendezvous.store import MAX_STORE_BYTES, RendezvousStore
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.frames import LENGTH, MAC_BYTES, NONCE_BYTES, FrameCodec, read_frame
from sparkdl_runner.launch.wire.message_json import decode, encode
from sparkdl_runner.launch.wire.messages import (
    AGENT_TO_DRIVER,
    Failed,
    Figure,
    FilePart,
    Hello,
    Message,
    PlainValue,
    ValuePart,
    ValueSent,
)
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, assign_ranks

PEER = Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")
WORLD = assign_ranks([PEER], backend="torch")[0]
KEY, NONCE = bytes(range(32)), bytes(NONCE_BYTES)
MESSAGES = [
    (json.loads(json.dumps(values)), payload)
    for values, payload in map(
        encode,
        (
            Hello(PEER),
            FilePart("logs/rank_0", b"text", True, number=1),
            Figure(1, b"a picture", number=4),
            PlainValue('{"value": 1}', number=2),
            ValuePart(b"a part", True, number=3),
            ValueSent(6, "0" * 64),
            Failed(Outcome(world=WORLD, status=Status.FAILED, ended_at=1.0)),
        ),
    )
]
FRAMES = [FrameCodec(KEY, NONCE, b"agent").seal(*message) for message in MESSAGES]
BODIES = [frame[LENGTH.size + MAC_BYTES :] for frame in FRAMES]


async def frame_in(data: bytes) -> Any:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await read_frame(reader, FrameCodec(KEY, NONCE, b"agent"))


@fuzz
@given(changed_bytes(FRAMES, [FRAMES[0][:4], FRAMES[0][:36], b"\xff" * 4, b"{}", b"\0" * 4]))
def test_frames_of_strangers(data):
    with bounded(ValueError, EOFError):
        assert asyncio.run(frame_in(data)) in MESSAGES


@fuzz
@given(changed_bytes([*BODIES, *(LENGTH.pack(len(text)) + text for text in DEEP)], JSON_TOKENS))
def test_frames_of_who_has_the_key(body):
    mac = FrameCodec(KEY, NONCE, b"agent")._mac(body)
    with bounded(ValueError):
        content = asyncio.run(frame_in(LENGTH.pack(len(body)) + mac + body))
        assert isinstance(decode(*content, AGENT_TO_DRIVER), Message)


class Writer:
    """Stands for the other end of a connection."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        pass


async def converse(server: Any, data: bytes) -> bytes:
    reader, writer = asyncio.StreamReader(), Writer()
    reader.feed_data(data)
    reader.feed_eof()
    await server.handle(reader, writer)
    return writer.sent


HEADS = [
    b"PUT %s/global/rank_0 HTTP/1.1\r\nContent-Length: 5\r\nHost: h\r\n\r\nabcde",
    b"GET %s/local_host0/1 HTTP/1.1\r\nAccept: */*\r\n\r\n",
    b"DELETE %s/global/rank_0 HTTP/1.0\r\n\r\n",
]
HTTP_TOKENS = [b" ", b"\r\n", b"\r\n\r\n", b"/", b":", b"PUT", b"Content-Length: ", b"-1", b"9" * 9]


@fuzz
@given(changed_bytes([head % b"" for head in HEADS], HTTP_TOKENS))
def test_heads_of_requests(head):
    with bounded(ValueError):
        method, path, length = parse_request(head)
        assert isinstance(method, str)
        assert path.startswith("/")
        assert length >= 0


def test_requests_of_the_rendezvous(monkeypatch):
    monkeypatch.setattr(store_module, "WAIT_SECONDS", 0.001)
    told: list[str] = []
    store = RendezvousStore(
        network.listen("127.0.0.1"), frozenset(), num_proc=2, secret="s", tell=told.append
    )
    own = f"/s:{store.address[1]}".encode()
    good = [head % own for head in HEADS]

    @fuzz
    @given(changed_bytes(good, [own, *HTTP_TOKENS]))
    def run(data: bytes) -> None:
        with bounded(ValueError, EOFError, asyncio.LimitOverrunError):
            assert loop.run(converse(store, data)).startswith(b"HTTP/1.1 ")
        assert store._num_keys == sum(map(len, store._scopes.values())) <= EXAMPLES
        values = [value for scope in store._scopes.values() for value in scope.values()]
        assert store._size_bytes == sum(map(len, filter(None, values))) <= MAX_STORE_BYTES

    try:
        with asyncio.Runner() as loop:  # As in the server, one for all requests.
            run()
    finally:
        store.close()


def test_hellos_of_ranks_that_end():
    left: list[bool] = []
    server = ExitBarrier(
        network.listen("127.0.0.1"), frozenset(), 2, "secret", lambda: left.append(True)
    )

    @fuzz
    @given(changed_bytes([b"secret\0\0\0\1"], [b"secret", b"\0\0\0\2", b"\xff"]))
    def run(data: bytes) -> None:
        with bounded(ValueError, EOFError):
            assert asyncio.run(converse(server, data)) == b""

    try:
        run()
    finally:
        server.close()
    assert len(left) <= 1


def data_manifest(folder: Path) -> Any:
    import pyarrow as pa
    import pyarrow.fs
    import pyarrow.parquet as pq

    from sparkdl_runner.data.dataset.describe import describe_parquet

    names = ["a.parquet", "b.parquet"]
    for name in names:
        table = pa.table({"id": [1, 2, 3], "vector": [[1.0], [2.0], [3.0]]})
        pq.write_table(table, folder / name, row_group_size=2)
    local = pa.fs.LocalFileSystem()
    return describe_parquet(local, str(folder), names, keep_footers=True).to_json()


def test_manifests_of_data_sets(tmp_path):
    good = json.loads(json.dumps(data_manifest(tmp_path)))

    @fuzz
    @given(changed_bytes([plain(good), *DEEP], JSON_TOKENS) | changed_json(good, plain))
    def run(text: bytes) -> None:
        with bounded(DatasetError):
            found = Manifest.from_bytes(text)
            assert found.rows == 6
            assert found.fingerprint
            assert all(file.size_bytes >= 0 for file in found.files)
            assert Manifest.from_json(json.loads(json.dumps(found.to_json()))).files == found.files

    run()


def test_footers_of_data_sets(tmp_path):
    data_manifest(tmp_path)
    kept = (tmp_path / "_footers.bin").read_bytes()

    @fuzz
    @given(changed_bytes([kept], [b"\xff" * 8, bytes(8)]))
    def run(packed: bytes) -> None:
        with bounded(ForeignFileError):
            assert isinstance(unpack_footer(memoryview(packed)), bytes)

    run()


OWNER = asdict(Owner.this_process("d", "app"))


@fuzz
@given(changed_bytes([plain(OWNER), *DEEP], JSON_TOKENS) | changed_json(OWNER, plain))
def test_markers_of_folders(text):
    with bounded(ForeignFileError, json.JSONDecodeError):
        owner = build(Owner, parse_json(text))
        assert isinstance(owner.is_gone(), bool)
        assert isinstance(owner.is_on_this_machine(), bool)


FILE = FileEntry(path="model.safetensors", size_bytes=1, sha256="0")
CHECKPOINT = unseal(
    checkpoint_manifest.Manifest(
        step=1,
        epoch=None,
        attempt=0,
        world_size=1,
        created="2026",
        sharded=False,
        parameters={"w": {"shape": [2], "dtype": "float32"}},
        optimizer_class="SGD",
        metrics={"loss": 1.5},
        loader=None,
        resumable={},
        files=(FILE,),
    ).to_bytes()
)
SHARD = {"path": "sharded/rank-0.safetensors", "key": "w@0", "offsets": [0], "sizes": [2]}
SHARDS = {
    "tensors": {"w": {"shape": [2], "dtype": "torch.float32", "shards": [SHARD]}},
    "values": {"v": {"path": "sharded/rank-0.safetensors", "key": "v"}},
}


def sealed(value: Any) -> bytes:
    with suppress(TypeError, AttributeError):
        return seal(value)
    return plain(value)


@fuzz
@given(changed_bytes([seal(CHECKPOINT), *DEEP], JSON_TOKENS) | changed_json(CHECKPOINT, sealed))
def test_manifests_of_checkpoints(text):
    with bounded(DamageError):
        found = checkpoint_manifest.Manifest.from_bytes(text)
        assert checkpoint_manifest.Manifest.from_bytes(found.to_bytes()).name == found.name
        assert str(found.name)
        assert all(entry.size_bytes >= 0 for entry in found.files)
        mismatch.model_problem(found, {})


@fuzz
@given(changed_bytes([seal(SHARDS), *DEEP], JSON_TOKENS) | changed_json(SHARDS, sealed))
def test_descriptions_of_shards(text):
    with bounded(DamageError):
        assert sealed(shards.metadata_of(text)) == text


class InMemory:
    """A storage of one file."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    is_local = True
    piece_bytes = 1 << 20
    retry_seconds = 0.0

    def open(self, name: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def state_file() -> tuple[bytes, Any, Callable[[Any], bytes]]:
    """A state's file, what it says of itself, and how to write that anew."""
    import torch

    state = {"w": torch.ones(2, 3), "n": [1, 2.5, None, (True, b"ab", 1j)], "d": torch.float32}
    ((_, content),) = state_files.files_of(
        "s.safetensors", state_files.flatten("s", state, torch.clone)
    )
    size = int.from_bytes(content[:8], "little")
    header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]

    def write(structure: Any) -> bytes:
        about = {**header["__metadata__"], "state": json.dumps(structure)}
        text = json.dumps({**header, "__metadata__": about}).encode()
        return len(text).to_bytes(8, "little") + text + rest

    return content, json.loads(header["__metadata__"]["state"]), write


def test_states_in_checkpoints():
    content, structure, write = state_file()
    tokens = [*JSON_TOKENS, b"\xff" * 8, b'"files":"99"', b'"data_offsets":[0,1]', b"F64"]

    @fuzz
    @given(changed_bytes([content], tokens) | changed_json(structure, write))
    def run(text: bytes) -> None:
        digest = sha256(text).hexdigest()
        entry = FileEntry(path="s.safetensors", size_bytes=len(text), sha256=digest)
        manifest = checkpoint_manifest.Manifest.from_bytes(seal(CHECKPOINT))
        storage: Any = InMemory(text)
        reader = CheckpointReader(storage, replace(manifest, files=(entry,)))
        with bounded(DamageError):
            reader.load("s")

    run()


YAML = [
    b"example: digits\nnum_proc: 2\nbackend: torch\n",
    b"function: a.b:main\nhyperparameters: &h {lr: 1e-4, layers: [1, 2]}\n",
    b"a: " + b"[" * 600,
]
YAML_TOKENS = [
    *[b"[", b"{", b"- ", b"? ", b": ", b"\n", b"\n  ", b"&a ", b"*a", b"<<: *h", b"!!set ", b"|\n"],
    *[b"!!binary ", b"!!python/name:os.system ", b"1:", b"0x", b"~", b"2001-1-1", b"\xff", b"%"],
]


def test_configurations_of_jobs(tmp_path):
    path = tmp_path / "job.yaml"

    @fuzz
    @given(changed_bytes(YAML, YAML_TOKENS))
    def run(text: bytes) -> None:
        path.write_bytes(text)
        with bounded(ConfigError):
            assert isinstance(load(TrainSettings, str(path), {}), TrainSettings)

    run()


SECRET = "hunter2-hunter2"
LINES: Sequence[bytes] = [
    f"https://me:{SECRET}@host/?sig={SECRET}&a=1".encode(),
    f'{{"password": "{SECRET}"}} Authorization: Bearer {SECRET}'.encode(),
]
LINE_TOKENS = [*[b"://", b":", b"@", b"=", b"&sig=", b'"', b"'", b"\\", b"bearer ", b"a"], b"\xff"]


@fuzz
@given(changed_bytes(LINES, LINE_TOKENS), st.booleans())
def test_lines_that_ranks_print(line, is_raw):
    redact = Redactor([SECRET])
    with bounded():
        hidden = redact.raw(line) if is_raw else redact(line.decode(errors="replace")).encode()
    assert SECRET.encode() not in hidden


OPCODES = [b"\x8c\x08builtins\x94\x8c\x04exec\x94\x93", b"R", b"b", b"(", b"t", b"u", b"s", b"h\0"]


@fuzz
@given(changed_bytes([SCHEMA], [*OPCODES, b"j\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f", b"\x94"]))
def test_pickled_schemas(pickled):
    with bounded(ForeignFileError):
        assert all(isinstance(one, Field) for one in read_unischema(pickled).values())


def array_file(**packed: Any) -> bytes:
    stream = io.BytesIO()
    if packed:
        np.savez_compressed(stream, **packed)
    else:
        np.save(stream, np.arange(6, dtype=np.int32).reshape(2, 3))
    return stream.getvalue()


@fuzz
@given(
    changed_bytes(
        [array_file(), array_file(arr=np.arange(6, dtype=np.int32).reshape(2, 3))],
        [b"(2, 3)", b"(999999999, 3)", b"'|O'", b"'<i4'", b"True", b"\xff" * 4, b"PK\x05\x06"],
    ),
    st.booleans(),
)
def test_arrays_in_rows(file, packed):
    with bounded(BadRowError):
        rows = pa.array([file], pa.binary())
        assert ndarrays(np.dtype("int32"), (2, 3), packed, rows, 0).shape == (1, 2, 3)
