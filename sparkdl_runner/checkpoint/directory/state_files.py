"""States as files without pickle: their tensors as safetensors, and all else as JSON beside them.

Each file is one that any reader of safetensors opens. The metadata of the first says how the state
is built, with a name in place of each tensor. Many tensors go on in further files.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SUFFIX = ".safetensors"
_NUMBER_AND_SUFFIX = re.compile(r"(~[0-9]+)?\.(safetensors|pt)$")
# The library makes a file in memory, and lets no other thread run meanwhile: files stay small.
_FILE_BYTES = 64 << 20
_MOST_FILES = 64
_STATE, _FILES = "state", "files"
# JSON has only objects, with text as keys. So a dict is written as its kind and its items.
_DICTS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_KIND = "is"


@dataclass(frozen=True)
class FlatState:
    """A state that was taken apart."""

    structure: Any
    """How it is built, as JSON, with a name in place of each tensor."""
    tensors: Mapping[str, torch.Tensor]
    """By these names; views of copies, with the dimensions in the order of the memory."""


def flatten(where: str, state: Any, copy: Callable[[torch.Tensor], torch.Tensor]) -> FlatState:
    """Takes a state apart, and copies its tensors.

    Args:
        where: What the state is called in an error.
        state: Tensors, numbers, text, and dicts and sequences of them.
        copy: Returns a tensor's copy in host memory, the same one for the same tensor.

    Raises:
        TypeError: Names an entry that is neither a tensor nor plain.
    """
    flattener = _Flattener(where, copy)
    return FlatState(flattener.write(state), flattener.tensors)


def files_of(path: str, state: FlatState) -> Iterator[tuple[str, bytes]]:
    """The path and the content of each file of a state.

    Args:
        path: Of the first file; it ends in ``SUFFIX``.
        state: What to write.
    """
    from safetensors.torch import save

    groups = list(_groups(state.tensors))
    metadata = {_STATE: json.dumps(state.structure), _FILES: str(len(groups))}
    for number, group in enumerate(groups):
        tensors = {name: tensor.contiguous() for name, tensor in group.items()}
        yield _path(path, number), save(tensors, metadata if number == 0 else None)


def value_of(path: str, read: Callable[[str], bytes]) -> Any:
    """The state that was taken apart, with all tensors in host memory.

    Args:
        path: Of the first file.
        read: Returns the content of a file.
    """
    from safetensors.torch import load

    first = read(path)
    metadata = _metadata(first)
    tensors = load(first)
    for number in range(1, int(metadata[_FILES])):
        tensors.update(load(read(_path(path, number))))
    return _read(json.loads(metadata[_STATE]), tensors)


def state_in(path: str) -> str:
    """Which state a file is of: its path without number and suffix, also of an older format."""
    return _NUMBER_AND_SUFFIX.sub("", path)


def _path(path: str, number: int) -> str:
    return path if number == 0 else f"{path.removesuffix(SUFFIX)}~{number}{SUFFIX}"


def _metadata(content: bytes) -> Mapping[str, str]:
    """The text that a file of safetensors begins with: its length in 8 bytes, and JSON."""
    length = int.from_bytes(content[:8], "little")
    metadata: Mapping[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return metadata


def _groups(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    most = max(_FILE_BYTES, sum(sizes.values()) // _MOST_FILES)
    group: dict[str, torch.Tensor] = {}
    size_bytes = 0
    for name, tensor in tensors.items():
        if group and size_bytes + sizes[name] > most:
            yield group
            group, size_bytes = {}, 0
        group[name] = tensor
        size_bytes += sizes[name]
    yield group


class _Flattener:
    """Writes a state as JSON, and puts copies of its tensors aside by name."""

    def __init__(self, where: str, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._where = where
        self._copy = copy
        self._known: dict[int, tuple[torch.Tensor, Any]] = {}
        self.tensors: dict[str, torch.Tensor] = {}

    def write(self, value: Any, path: tuple[Any, ...] = (), part: str = "") -> Any:
        """The JSON of a value that is at ``path``, or of a key there if ``part`` says so."""
        import torch

        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor and value.layout == torch.strided and not value.is_quantized:
            return self._put_aside(value, path)
        if kind in _DICTS.values():
            items = [
                [self.write(key, path, "a key of "), self.write(entry, (*path, key), part)]
                for key, entry in value.items()
            ]
            written = {_KIND: kind.__name__, "items": items}
            if getattr(value, "_metadata", None):  # Modules keep versions of their state there.
                written["metadata"] = self.write(dict(value._metadata), path)
            return written
        if kind in (list, tuple, set, torch.Size):
            items = [self.write(entry, (*path, at), part) for at, entry in enumerate(value)]
            return items if kind is list else {_KIND: kind.__name__, "items": items}
        if kind is bytes:
            return {_KIND: "bytes", "items": list(value)}
        if kind is complex:
            return {_KIND: "complex", "items": [value.real, value.imag]}
        if kind in (torch.dtype, torch.device):
            return {_KIND: kind.__name__, "name": str(value).removeprefix("torch.")}
        raise TypeError(_refusal(part + self._where + "".join(f"[{key!r}]" for key in path), value))

    def _put_aside(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> Any:
        import torch

        copied = self._copy(tensor)
        if id(copied) in self._known:  # What was one tensor is one when it comes back.
            return self._known[id(copied)][1]
        name = reduce(_join, path, "")
        unique, number = name or "tensor", 2
        while unique in self.tensors:
            unique, number = f"{name}#{number}", number + 1
        stored = torch.view_as_real(copied) if copied.is_complex() else copied
        # Dense in another order of dimensions, such as channels_last: stored in the order that
        # they have in memory.
        order = sorted(range(stored.ndim), key=lambda place: (-stored.stride(place), place))
        self.tensors[unique] = stored.permute(order)
        is_complex = copied.is_complex()
        written = {_KIND: "tensor", "name": unique, "order": order, "complex": is_complex}
        self._known[id(copied)] = copied, written
        return written


def _refusal(where: str, value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return (
            f"{where} is a tensor of {value.dtype}, {value.layout}, which a checkpoint cannot "
            "hold: save a dense one of plain numbers."
        )
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return (
        f"{where} is a {name}, which a checkpoint cannot hold: it could be loaded again only by "
        "running code from the file. Save tensors, numbers, text, and dicts and lists of them, "
        "such as its state_dict()."
    )


def _read(written: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    import torch

    if isinstance(written, list):
        return [_read(entry, tensors) for entry in written]
    if not isinstance(written, dict):
        return written
    kind, items = written[_KIND], written.get("items", ())
    if kind == "tensor":
        order = written["order"]
        inverse = [order.index(place) for place in range(len(order))]
        tensor = tensors[written["name"]].permute(inverse)
        return torch.view_as_complex(tensor) if written["complex"] else tensor
    if kind in _DICTS:
        pairs = ((_read(key, tensors), _read(entry, tensors)) for key, entry in items)
        value = _DICTS[kind](dict(pairs))
        if "metadata" in written:
            value._metadata = OrderedDict(_read(written["metadata"], tensors))
        return value
    if kind == "dtype":
        dtypes = {
            str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
        }
        return dtypes[f"torch.{written['name']}"]
    if kind == "device":
        return torch.device(written["name"])
    sequence = tuple(_read(entry, tensors) for entry in items)
    if kind == "complex":
        return complex(*sequence)
    makers: dict[str, Any] = {"tuple": tuple, "set": set, "bytes": bytes, "Size": torch.Size}
    return makers[kind](sequence)


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)
