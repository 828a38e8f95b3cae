"""JSON that notices when a single bit of it changes.

A sealed text is the one canonical way to write its values down, the checksum of the rest among
them. A reader writes down what it read, the same way, and must get the very same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_SEAL = "sha256_of_the_rest"


class BrokenSealError(ValueError):
    """A text was cut, changed, or never sealed."""


def seal(fields: Mapping[str, Any]) -> bytes:
    """Writes plain JSON values down with their own checksum.

    Raises:
        TypeError: A value is not plain.
    """
    return _canonical({**fields, _SEAL: _digest(fields)})


def unseal(text: bytes) -> dict[str, Any]:
    """Reads what ``seal`` returned.

    Raises:
        BrokenSealError: It is anything else, by so much as a bit.
    """
    try:
        fields = json.loads(text.decode("ascii"))
        again = _canonical(fields)
    except (ValueError, RecursionError) as error:
        raise BrokenSealError(f"it is not JSON ({error})") from None
    if not isinstance(fields, dict) or again != text:
        raise BrokenSealError("it is not written the way that it is written by this package")
    if fields.pop(_SEAL, None) != _digest(fields):
        raise BrokenSealError("it does not agree with its own checksum")
    return fields


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(fields)).hexdigest()
