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


def seal(fields: Mapping[str, Any]) -> bytes:
    """Writes plain JSON values with their own checksum.

    Raises:
        TypeError: A value is not plain.
    """
    return _canonical({**fields, _SEAL: _digest(fields)})


def unseal(text: bytes, path: str = "a file") -> dict[str, Any]:
    """Reads what ``seal`` returned.

    Args:
        text: The bytes.
        path: The file that they are from, for the message.

    Raises:
        DamageError: They are anything else.
    """
    try:
        fields = json.loads(text.decode("ascii"))
        again = _canonical(fields)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(fields, dict) or again != text:
        raise DamageError(f"{path} is damaged: this package writes its JSON in another way")
    if fields.pop(_SEAL, None) != _digest(fields):
        raise DamageError(f"{path} is damaged: it does not agree with its own checksum")
    return fields


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(fields)).hexdigest()
