"""JSON that carries its own checksum, so that a change of a single bit is noticed.

There is one canonical way to write the values. A reader writes what it read in the same way, and
must get the very same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sparkdl_runner.checkpoint.errors import DamageError

_SEAL = "sha256_of_the_rest"
# Lists and objects take some twenty times the memory of their text if they are small or empty. What
# this package writes has some 30 bytes of text for each; a few do no harm, whatever they are.
_MANY_CONTAINERS, _LEAST_BYTES = 100_000, 8


def seal(fields: Mapping[str, Any]) -> bytes:
    """Writes plain JSON values with their own checksum.

    Raises:
        TypeError: A value is not plain.
    """
    return _written(fields, None)[0]


def unseal(text: bytes, path: str = "a file") -> dict[str, Any]:
    """Reads what ``seal`` returned.

    Args:
        text: The bytes.
        path: The file that they are from, for the message.

    Raises:
        DamageError: They are anything else.
    """
    if text.count(b"[") + text.count(b"{") > max(_MANY_CONTAINERS, len(text) // _LEAST_BYTES):
        raise DamageError(f"{path} is damaged: it is nearly nothing but empty lists and objects")
    try:
        fields: dict[str, Any] = json.loads(text.decode("ascii"))
        is_sealed = isinstance(fields, dict) and isinstance(fields.get(_SEAL), str)
        again, digest = _written(fields, fields[_SEAL]) if is_sealed else (b"", "")
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged: it is not JSON ({error})") from None
    if again != text:
        raise DamageError(f"{path} is damaged: this package writes its JSON in another way")
    if fields.pop(_SEAL) != digest:
        raise DamageError(f"{path} is damaged: it does not agree with its own checksum")
    return fields


def _written(fields: Mapping[str, Any], seal: str | None) -> tuple[bytes, str]:
    """The text of fields with a seal, by default the right one; and the right one.

    All but the seal is written once, as there may be much of it.
    """
    before = _members({name: fields[name] for name in fields if name < _SEAL})
    after = _members({name: fields[name] for name in fields if name > _SEAL})
    digest = hashlib.sha256(_object(before, after)).hexdigest()
    return _object(before, _members({_SEAL: digest if seal is None else seal}), after), digest


def _object(*members: str) -> bytes:
    return f"{{{','.join(filter(None, members))}}}".encode()


def _members(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)[1:-1]
