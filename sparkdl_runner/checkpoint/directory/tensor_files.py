"""States as files without pickle: their tensors as safetensors, and all else as JSON beside them.

Each file is one that any reader of safetensors opens. The first says in its metadata how the state
is built, with a name in place of each tensor; where there are many tensors, others follow it.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SUFFIX = ".safetensors"
_NUMBER_AND_SUFFIX = re.compile(r"(~[0-9]+)?\.(safetensors|pt)$")
# The library makes a file in memory, and lets no other thread run meanwhile: files stay small.
_FILE_BYTES = 64 << 20
_MOST_FILES = 64
_STATE, _FILES = "state", "files"
# JSON has objects for dicts with text as keys; these are written as what they are and hold.
_DICTS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_KIND = "is"


def require_savable(where: str, value: Any) -> None:
    """Refuses what is neither a tensor nor plain.

    Args:
        where: What ``value`` is called.
        value: Tensors, numbers, text, and dicts and sequences of them.

    Raises:
        TypeError: Names the entry that is something else.
    """
    import torch

    kind = type(value)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise TypeError(
                f"{where} is a tensor of {value.dtype}, {value.layout}, which a checkpoint cannot "
                "hold: save a dense one of plain numbers."
            )
    elif kind in _DICTS.values():
        for key, entry in value.items():
            require_savable(f"a key of {where}", key)
            require_savable(f"{where}[{key!r}]", entry)
    elif kind in (list, tuple, set, torch.Size):
        for number, entry in enumerate(value):
            require_savable(f"{where}[{number}]", entry)
    elif value is not None and kind not in _plain_kinds():
        _refuse(where, value)


def _plain_kinds() -> tuple[Any, ...]:
    import torch

    return (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def _refuse(where: str, value: Any) -> None:
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    raise TypeError(
        f"{where} is a {name}, which a checkpoint cannot hold: it could be loaded again only by "
        "running code from the file. Save tensors, numbers, text, and dicts and lists of them, "
        "such as its state_dict()."
    )


def files_of(path: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """The files of a state, one after the other.

    Args:
        path: Of the first file; it ends in ``SUFFIX``.
        value: What ``require_savable`` lets pass, its tensors in host memory.

    Yields:
        The path and the content of each file.
    """
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    structure = _Writer(tensors).write(value, "")
    groups = list(_groups(tensors))
    metadata = {_STATE: json.dumps(structure), _FILES: str(len(groups))}
    for number, group in enumerate(groups):
        about = metadata if number == 0 else None
        yield _path(path, number), save(group, about)


def value_of(path: str, read: Callable[[str], bytes]) -> Any:
    """What ``files_of`` was given.

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
    found: Mapping[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return found


def _groups(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    sizes = {name: one.numel() * one.element_size() for name, one in tensors.items()}
    most = max(_FILE_BYTES, sum(sizes.values()) // _MOST_FILES)
    group: dict[str, torch.Tensor] = {}
    size_bytes = 0
    for name, one in tensors.items():
        if group and size_bytes + sizes[name] > most:
            yield group
            group, size_bytes = {}, 0
        group[name] = one
        size_bytes += sizes[name]
    yield group


class _Writer:
    """Writes a state as JSON, and puts its tensors aside by name."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._known: dict[int, Any] = {}

    def write(self, value: Any, name: str) -> Any:
        import torch

        kind = type(value)
        if isinstance(value, torch.Tensor):
            # What was one tensor is one when it comes back.
            if id(value) not in self._known:
                self._known[id(value)] = self._put_aside(value.detach(), name)
            return self._known[id(value)]
        if kind in _DICTS.values():
            items = [
                [self.write(key, name), self.write(entry, _join(name, key))]
                for key, entry in value.items()
            ]
            written = {_KIND: kind.__name__, "items": items}
            if getattr(value, "_metadata", None):  # Modules keep versions of their state there.
                written["metadata"] = self.write(dict(value._metadata), name)
            return written
        if isinstance(value, list | tuple | set):
            items = [self.write(entry, _join(name, place)) for place, entry in enumerate(value)]
            return items if kind is list else {_KIND: kind.__name__, "items": items}
        if kind is bytes:
            return {_KIND: "bytes", "items": list(value)}
        if kind is complex:
            return {_KIND: "complex", "items": [value.real, value.imag]}
        if kind in (torch.dtype, torch.device):
            return {_KIND: kind.__name__, "name": str(value).removeprefix("torch.")}
        return value

    def _put_aside(self, tensor: torch.Tensor, name: str) -> Any:
        import torch

        unique, number = name or "tensor", 2
        while unique in self._tensors:
            unique, number = f"{name}#{number}", number + 1
        is_complex = tensor.is_complex()
        if is_complex:
            tensor = torch.view_as_real(tensor)
        # Dense in another order of dimensions, such as channels_last: stored in the order that
        # they have in memory.
        order = sorted(range(tensor.ndim), key=lambda place: (-tensor.stride(place), place))
        self._tensors[unique] = tensor.permute(order).contiguous()
        return {_KIND: "tensor", "name": unique, "order": order, "complex": is_complex}


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
        dtypes = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
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
