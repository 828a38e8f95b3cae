"""Reads YAML of plain values. Each error is one sentence that names the file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from sparkdl_runner.base.foreign_file import IrregularFileError, open_regular
from sparkdl_runner.base.nearest import nearest
from sparkdl_runner.errors import ConfigError

# A long configuration has some thousand bytes; PyYAML takes seconds for a million.
_MOST_BYTES = 256 << 10
_MOST_VALUES = 100_000
_MOST_BITS = 1024
_MOST_CHARACTERS = 1000
# The shell opens these for --config <(…). No other user can have put a file there.
_OWN_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def read_yaml(path: str) -> dict[str, Any]:
    """Reads a file that holds one mapping.

    Raises:
        ConfigError: It is not there, is no YAML, or holds something else.
    """
    try:
        with _open(path) as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ConfigError(f"{path} is larger than the {_MOST_BYTES:,} bytes that are read.")
        loader = _Loader(text.decode())
        node = loader.get_single_node()
        if _is_too_much(node):
            raise ConfigError(
                f"{path} stands for more than {_MOST_VALUES:,} values, or holds itself: write out "
                "what its aliases (*name) stand for."
            )
        content = {} if node is None else loader.construct_document(node)
    except IrregularFileError:
        if Path(path).is_dir():
            raise ConfigError(f"{path} is a folder, and no YAML file{_file_in(path)}") from None
        raise ConfigError(f"{path} is a pipe or a device, and no YAML file.") from None
    except OSError as error:
        is_gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
        near = _nearest_file(path) if is_gone else "."
        raise ConfigError(f"cannot read {path}: {error.strerror}{near}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8.") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())[:_MOST_CHARACTERS]
        raise ConfigError(f"{path} is no YAML: {reason}.") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply.") from None
    if not isinstance(content, dict):
        kinds = {list: "a list", str: "a text", type(None): "nothing"}
        kind = kinds.get(type(content), "a single value")
        raise ConfigError(f"{path} holds {kind}; it must hold keys and their values.")
    return content


def parse_value(text: str) -> Any:
    """Reads a value of a flag as YAML would: ``3``, ``1e-4``, ``true``, ``[1, 2]``, ``text``."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a safe loader
    except (yaml.YAMLError, RecursionError):
        return text


def _open(path: str) -> BinaryIO:
    if path.startswith(_OWN_DESCRIPTORS):
        return open(path, "rb")
    return os.fdopen(open_regular(path), "rb")


def _is_too_much(node: yaml.Node | None) -> bool:
    """Whether aliases of aliases make millions of values of a few lines, or one holds itself."""
    count, waiting = 1, [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, yaml.MappingNode):
            parts = [part for pair in current.value for part in pair]
        else:
            parts = current.value if isinstance(current, yaml.SequenceNode) else []
        count += len(parts)
        if count > 2 * _MOST_VALUES:  # A key is a node, too.
            return True
        waiting += parts
    return False


class _Loader(yaml.SafeLoader):
    """Safe YAML, in which 1e-4 is a number, and no key hides an earlier one."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int) and value.bit_length() > _MOST_BITS:
                raise ValueError("the number is far too large")
            return value
        except ValueError as error:  # It looks like a date or a number, and is none.
            message = f"{node.value!r:.80} has no value ({error}); a text goes into quotes"
            raise _refused(message, node) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a key is a list or a mapping, and no text", key)
            if key.value in seen:
                raise _refused(f"the key {key.value!r} is there twice", key)
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


def _refused(why: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


# YAML 1.1 wants a dot in every float, so that a learning rate of 1e-4 would become a text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _file_in(folder: str) -> str:
    files = sorted(str(file) for file in Path(folder).glob("*.y*ml"))
    return f"; there is {files[0]} in it." if len(files) == 1 else "."


def _nearest_file(path: str) -> str:
    folder = Path(path).parent
    if not folder.is_dir():
        return f" (there is no folder {folder})."
    try:
        return nearest(path, [str(file) for file in folder.iterdir() if file.is_file()])
    except OSError:  # A folder may be open to those who know what is in it.
        return "."
