"""Keeps secrets out of what people read: logs, errors, and what MLflow is told."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

HIDDEN = "[redacted]"
# Whose value is a secret, by the name of the variable.
_NAME = re.compile(
    r"password|passwd|secret|credential|(account|access|private|api|signing)_?key"
    r"|connection_string|(^|[_.\-])(token|sas|auth)$",
    re.IGNORECASE,
)
# user:password@ in a URL; the user alone tells nobody anything.
_USERINFO = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*@")
_RAW_USERINFO = re.compile(_USERINFO.pattern.encode())
# What is so short would be found, and blotted out, in innocent words.
_LEAST_CHARACTERS = 8


class Redactor:
    """Replaces secrets in texts.

    Args:
        secrets: The secrets themselves.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first: one may be a part of another.
        known = sorted({one for one in secrets if len(one) >= _LEAST_CHARACTERS}, key=len)[::-1]
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None
        raw = [one.encode(errors="replace") for one in known]
        self._raw_pattern = re.compile(b"|".join(map(re.escape, raw))) if raw else None

    def __call__(self, text: str) -> str:
        """The text without the secrets, and without passwords in URLs."""
        if "://" in text:
            text = _USERINFO.sub(f"{HIDDEN}@", text)
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def raw(self, text: bytes) -> bytes:
        """The same of text that is not decoded."""
        if b"://" in text:
            text = _RAW_USERINFO.sub(f"{HIDDEN}@".encode(), text)
        return text if self._raw_pattern is None else self._raw_pattern.sub(HIDDEN.encode(), text)


def is_secret_name(name: str) -> bool:
    """Whether a variable or parameter of that name holds a secret."""
    return _NAME.search(name) is not None


def secrets_of(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The values of the variables whose name says that they are secret."""
    return [value for name, value in environment.items() if is_secret_name(name)]
