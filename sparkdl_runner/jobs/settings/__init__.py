"""Settings of a job: YAML keys and flags, checked together, with one sentence for what is wrong."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

import pydantic
import yaml
from pydantic_core import PydanticCustomError

from sparkdl_runner.cli.nearest import did_you_mean, nearest
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.foreign_file import IrregularFileError, open_regular
from sparkdl_runner.jobs.settings.refusal import sentence

_KEYS = "keys and their values"
# A long configuration has some thousand bytes; PyYAML takes seconds for a million.
_MOST_BYTES = 256 << 10
_MOST_VALUES = 100_000
_MOST_BITS = 1024
_MOST_CHARACTERS = 1000
# The shell opens these for --config <(…). No other user can have put a file there.
_OWN_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


class Settings(pydantic.BaseModel):
    """Base of all settings: keys that nobody knows are refused, and types are not bent."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True
    )

    has_short_form: ClassVar[bool] = False
    """Whether a text may stand for the whole."""
    arguments_of_function: ClassVar[str] = ""
    """Which key, if any, holds arguments of a person's own function."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            expected = "a text, or keys and their values" if cls.has_short_form else _KEYS
            raise PydanticCustomError("no_keys", "it should be {expected}", {"expected": expected})
        for key in given:
            if key not in cls.model_fields:
                raise ValueError(f"there is no key {key!r}{did_you_mean(key, cls.model_fields)}")
        return given


class DataclassSettings(Settings):
    """Settings whose keys are the fields of a dataclass, which checks their values itself."""

    made_of: ClassVar[Any]
    """The dataclass."""

    def build(self) -> Any:
        """Returns the dataclass with these values."""
        keys = type(self).model_fields.keys()
        names = [field.name for field in dataclasses.fields(self.made_of) if field.name in keys]
        return self.made_of(**{name: getattr(self, name) for name in names})

    @pydantic.model_validator(mode="after")
    def _values_make_sense(self) -> DataclassSettings:
        try:
            self.build()
        except TypeError as error:  # One that pydantic would not take for a finding.
            raise ValueError(str(error)) from None
        return self


def settings_like(dataclass: Any, *, without: Iterable[str] = ()) -> type[DataclassSettings]:
    """Makes the settings that have the fields of ``dataclass``, except for some."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(dataclass):
        if field.name in set(without):
            continue
        default: Any = field.default
        if default is dataclasses.MISSING:
            factory: Any = field.default_factory
            default = pydantic.Field(default_factory=factory)
        # Any: the dataclass says what a wrong value is, in sentences of its own.
        fields[field.name] = (Any, default)
    name = f"{dataclass.__name__}Settings"
    made = pydantic.create_model(name, __base__=DataclassSettings, **fields)
    made.made_of = dataclass
    return made


_Settings = TypeVar("_Settings", bound=Settings)


def load(kind: type[_Settings], path: str | None, flags: Mapping[str, Any]) -> _Settings:
    """Reads a YAML file, puts the flags over it, and checks the whole.

    Args:
        kind: The settings that are wanted.
        path: The YAML file; None for none.
        flags: By key; where both hold a mapping, its entries are put over one by one.

    Raises:
        ConfigError: Of the first thing that is wrong.
    """
    found = _put_over({} if path is None else read_yaml(path), flags)
    try:
        return kind.model_validate(found)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path or 'the flags'}: {sentence(error, found)}") from None


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
        found = yaml.load(text.decode(), _Loader)  # noqa: S506 - it is a safe loader
    except IrregularFileError:
        if Path(path).is_dir():
            raise ConfigError(f"{path} is a folder, and no YAML file{_files_in(path)}") from None
        raise ConfigError(f"{path} is a pipe or a device, and no YAML file.") from None
    except OSError as error:
        is_gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
        near = _did_you_mean_file(path) if is_gone else "."
        raise ConfigError(f"cannot read {path}: {error.strerror}{near}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8.") from None
    except yaml.YAMLError as error:
        told = " ".join(str(error).split())[:_MOST_CHARACTERS]
        raise ConfigError(f"{path} is no YAML: {told}.") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply.") from None
    if _is_too_much(found):
        raise ConfigError(
            f"{path} stands for more than {_MOST_VALUES:,} values, or holds itself: write out what "
            "its aliases (*name) stand for."
        )
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds {_kind(found)}; it must hold {_KEYS}.")
    return found


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


def _is_too_much(value: Any) -> bool:
    """Whether aliases of aliases make millions of values of a few lines."""
    count, waiting = 1, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, (Mapping, list, set)):
            count += len(one)
            if count > _MOST_VALUES:
                return True
            waiting.extend(one.values() if isinstance(one, Mapping) else one)
    return False


class _Loader(yaml.SafeLoader):
    """Safe YAML, in which 1e-4 is a number, and no key hides an earlier one."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int) and value.bit_length() > _MOST_BITS:
                raise ValueError("the number is far too large")
            return value
        except ValueError as error:  # Of what looks like a date or a number, and is none.
            told = f"{node.value!r:.80} has no value ({error}); a text goes into quotes"
            raise yaml.constructor.ConstructorError(None, None, told, node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a list or a mapping, and no text", key_node.start_mark
                )
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return dict(super().construct_mapping(node, deep))

    def flatten_mapping(self, node: Any) -> None:
        """Puts in what ``<<`` names, unless that makes far too much of it."""
        size = len(node.value)
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                is_list = isinstance(value_node, yaml.SequenceNode)
                for one in value_node.value if is_list else [value_node]:
                    if isinstance(one, yaml.MappingNode):
                        self.flatten_mapping(one)
                        size += len(one.value)
        if size > _MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, "far too much is merged by <<", node.start_mark
            )
        super().flatten_mapping(node)


# YAML 1.1 wants a dot in every float, so that a learning rate of 1e-4 would become a text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _put_over(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _put_over(below.get(key), value) for key, value in above.items()}}


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "a text" if isinstance(value, str) else "a single value"


def _files_in(folder: str) -> str:
    found = sorted(str(file) for file in Path(folder).glob("*.y*ml"))
    return f"; there is {found[0]} in it." if len(found) == 1 else "."


def _did_you_mean_file(path: str) -> str:
    folder = Path(path).parent
    if not folder.is_dir():
        return f" (there is no folder {folder})."
    try:
        return nearest(path, [str(file) for file in folder.iterdir() if file.is_file()])
    except OSError:  # A folder may be open to those who know what is in it.
        return "."
