"""Settings of a job: YAML keys and flags, checked together, with one sentence for what is wrong."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import pydantic
from pydantic_core import PydanticCustomError

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.base.renamed import with_todays_names
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing.refusal import sentence
from sparkdl_runner.jobs.parsing.yaml_file import read_yaml


def options(field: pydantic.fields.FieldInfo) -> Sequence[Any]:
    """The types that a field admits, besides None."""
    annotation = field.annotation
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return [annotation]
    return [kind for kind in typing.get_args(annotation) if kind is not type(None)]


class Settings(pydantic.BaseModel):
    """Base of all settings: unknown keys are refused, and no value is converted to another type."""

    model_config = pydantic.ConfigDict(frozen=True, strict=True)

    has_short_form: ClassVar[bool] = False
    """Whether a text may be given in place of the mapping."""
    arguments_of_function: ClassVar[str] = ""
    """Which key, if any, holds arguments of a person's own function."""
    earlier_names: ClassVar[Mapping[str, str]] = {}
    """Today's name of a key by its earlier one, which is taken with a warning."""
    groups: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Keys by the title under which the help lists their flags."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            expected = "a text, or " if cls.has_short_form else ""
            expected += "keys and their values"
            raise PydanticCustomError("no_keys", "it should be {expected}", {"expected": expected})
        for key in given:
            if key not in cls.model_fields:
                below = cls.parents().get(key)
                near = (
                    f"; did you mean {below}.{key}?"
                    if below
                    else did_you_mean(key, cls.model_fields)
                )
                raise ValueError(f"there is no key {key!r}{near}")
        return given

    @classmethod
    def parents(cls) -> dict[str, str]:
        """By each key that is below another one, that one."""
        parents: dict[str, str] = {}
        for name, field in cls.model_fields.items():
            for kind in options(field):
                if isinstance(kind, type) and issubclass(kind, Settings):
                    parents |= dict.fromkeys(kind.model_fields, name)
        return parents


class DataclassSettings(Settings):
    """Settings whose keys are the fields of a dataclass, which checks their values itself."""

    made_of: ClassVar[Any]
    """The dataclass."""

    def build(self) -> Any:
        """Returns the dataclass with these values."""
        known = {field.name for field in dataclasses.fields(self.made_of)}
        return self.made_of(**{name: value for name, value in self if name in known})

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
        # Any, since the dataclass checks its values itself, with better sentences.
        fields[field.name] = (Any, default)
    name = f"{dataclass.__name__}Settings"
    made = pydantic.create_model(name, __base__=DataclassSettings, **fields)
    made.made_of = dataclass
    return made


def todays_keys(given: Mapping[str, Any], kind: type[Settings], where: str) -> dict[str, Any]:
    """What is given by keys, under their names of today; tells of earlier ones once.

    Raises:
        ConfigError: A key is there by both names.
    """
    try:
        return with_todays_names(
            given, kind.earlier_names, lambda message: _tell_once(f"{where}: {message}")
        )
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from None


_tell_once = functools.cache(tell)
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
    written = {} if path is None else todays_keys(read_yaml(path), kind, str(path))
    values = _put_over(written, flags)
    try:
        return kind.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path or 'the flags'}: {sentence(error, values)}") from None


def _put_over(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _put_over(below.get(key), value) for key, value in above.items()}}
