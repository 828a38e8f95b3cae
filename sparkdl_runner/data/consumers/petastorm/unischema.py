"""Reads petastorm's pickled schema without running it: which codec wrote which column.

``pickletools`` names the opcodes, and those that a schema consists of build inert values here: a
class is its name, and what a class would make is a record of its arguments. Nothing is imported or
called. A pickle with any other opcode, or that is no schema, is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs

from sparkdl_runner.base.foreign_file import ForeignFileError, open_input
from sparkdl_runner.data.dataset.manifest import NUMBER_TYPES, SCALAR_CODEC, ColumnInfo, Manifest

UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
"""petastorm's key for a pickled schema in the metadata of ``_common_metadata``."""

MOST_BYTES = 4 << 20
"""The largest schema that is read; one of 20 columns takes 1 KB."""

_MOST_DIMENSIONS = 32
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a Unischema."""

    dtype: str
    """NumPy's name, such as ``uint8`` or ``str_``; or another class's."""
    shape: tuple[int | None, ...]
    """None for a length that differs from row to row."""
    codec: str | None
    """The name of the codec's class; None for a plain column. ``?`` for one that is no petastorm's.
    """


@dataclass(frozen=True, kw_only=True)
class Unischema:
    """The columns in a directory's pickled schema."""

    fields: Mapping[str, Field]
    problem: str | None = None
    """Why it could not be read; then there are no fields."""


@dataclass(eq=False)
class _Class:
    module: str
    name: str


@dataclass(eq=False)
class _Made:
    """Stands for the object that calling a class would make."""

    cls: Any
    arguments: tuple[Any, ...]
    items: dict[Any, Any] = field(default_factory=dict)
    state: Any = None


_MARK = object()


def find_unischema(filesystem: fs.FileSystem, directory: str) -> Unischema | None:
    """The schema that petastorm's codecs left in a directory; None if there is none."""
    path = f"{directory.rstrip('/')}/_common_metadata"
    if filesystem.get_file_info(path).type != fs.FileType.File:
        return None
    with open_input(filesystem, path) as stream:
        metadata = pq.read_schema(stream).metadata or {}
    if UNISCHEMA_KEY not in metadata:
        return None
    try:
        return Unischema(fields=read_unischema(metadata[UNISCHEMA_KEY]))
    except ForeignFileError as error:
        return Unischema(fields={}, problem=str(error))


def with_codecs(manifest: Manifest, unischema: Unischema) -> Manifest:
    """The manifest, with the codecs of its columns as their hints."""

    def described(column: ColumnInfo) -> ColumnInfo:
        known = unischema.fields.get(column.name)
        if known is None:
            return column
        wanted = NUMBER_TYPES.get(known.dtype)
        if wanted is not None and column.type in map(str, NUMBER_TYPES.values()):
            is_stored = column.type == str(wanted)
            return column if is_stored else replace(column, hint=f"{SCALAR_CODEC} {known.dtype}")
        if known.codec is None or not column.type.endswith("binary"):
            return column
        hint = f"{known.codec} {known.dtype}"
        return replace(column, hint=hint, list_lengths=known.shape)

    return replace(manifest, columns=tuple(described(column) for column in manifest.columns))


def read_unischema(pickled: bytes) -> dict[str, Field]:
    """The fields of a pickled Unischema by name.

    Args:
        pickled: What petastorm keeps in ``_common_metadata``; of any origin.

    Raises:
        ForeignFileError: It is no Unischema, or one that petastorm's own writer does not make.
    """
    if len(pickled) > MOST_BYTES:
        raise ForeignFileError(f"the schema has {len(pickled):,} bytes, {MOST_BYTES:,} at most")
    try:
        root = _inert(pickled)
        if not _is(root, "petastorm.unischema", "Unischema"):
            raise ForeignFileError("the pickle is no Unischema")
        fields = root.state["_fields"].items
        return {str(name): _field(value) for name, value in fields.items()}
    except ForeignFileError:
        raise
    except Exception as error:  # Whatever a damaged pickle makes of the lines above.
        raise ForeignFileError(f"the pickled schema is damaged ({type(error).__name__})") from None


def _inert(pickled: bytes) -> Any:
    """The value of a pickle, of names and records."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def pop_to_mark() -> list[Any]:
        taken: list[Any] = []
        while (value := stack.pop()) is not _MARK:
            taken.append(value)
        return taken[::-1]

    def set_items(pairs: list[Any]) -> None:
        into = stack[-1].items if isinstance(stack[-1], _Made) else stack[-1]
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            into[key] = value

    def make() -> None:
        arguments = stack.pop()
        cls = stack.pop()
        if not isinstance(arguments, tuple) or not isinstance(cls, _Class):
            raise ForeignFileError("the pickle calls what is no class")
        stack.append(_Made(cls, arguments))

    def build() -> None:
        state = stack.pop()
        stack[-1].state = state

    def global_of_stack() -> None:
        name, module = stack.pop(), stack.pop()
        stack.append(_Class(module, name))

    steps: dict[str, Callable[[], None]] = {
        "MARK": lambda: stack.append(_MARK),
        "EMPTY_DICT": lambda: stack.append({}),
        "TUPLE": lambda: stack.append(tuple(pop_to_mark())),
        "SETITEMS": lambda: set_items(pop_to_mark()),
        "SETITEM": lambda: set_items([stack.pop(-2), stack.pop()]),
        "REDUCE": make,
        "NEWOBJ": make,
        "BUILD": build,
        "STACK_GLOBAL": global_of_stack,
    }
    for opcode, argument, _ in pickletools.genops(pickled):
        name = opcode.name
        if name == "STOP":
            (value,) = stack
            return value
        if name in ("PROTO", "FRAME"):
            continue
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _VALUES:
            stack.append(argument)
        elif name in _TUPLES:
            first = len(stack) - _TUPLES[name]
            stack[first:] = [tuple(stack[first:])]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[int(argument or 0)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument or 0)])
        elif name == "GLOBAL":
            stack.append(_Class(*str(argument).split(" ", 1)))
        elif name in steps:
            steps[name]()
        else:
            raise ForeignFileError(f"the pickle holds {name}, which no Unischema needs")
    raise ForeignFileError("the pickle has no end")


def _is(value: Any, module: str, name: str) -> bool:
    return isinstance(value, _Made) and (value.cls.module, value.cls.name) == (module, name)


def _field(value: Any) -> Field:
    if not _is(value, "petastorm.unischema", "UnischemaField"):
        raise ForeignFileError("an entry of the Unischema is no field")
    _, dtype, shape, codec, _ = value.arguments
    if not isinstance(shape, tuple) or len(shape) > _MOST_DIMENSIONS:
        raise ForeignFileError("the shape of a field is no tuple")
    for length in shape:
        if length is not None and (type(length) is not int or not 0 <= length < 1 << 31):
            raise ForeignFileError("the shape of a field is not made of lengths")
    codec_name = None
    if codec is not None:
        own = isinstance(codec, _Made) and codec.cls.module == "petastorm.codecs"
        codec_name = str(codec.cls.name) if own else "?"
    return Field(dtype=_dtype_name(dtype), shape=shape, codec=codec_name)


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, _Class):
        return str(dtype.name)
    if _is(dtype, "numpy", "dtype") and isinstance(dtype.arguments[0], str):
        return str(dtype.arguments[0])
    return "?"
