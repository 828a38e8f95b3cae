"""Keeps secrets out of logs, errors and MLflow.

SECURITY.md has the table of what is taken for a secret. Every pattern here takes time in proportion
to the text, whatever the text: ranks print what they like, and agents and driver read all of it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "[redacted]"
# Shorter values would also match in harmless words.
_LEAST_CHARACTERS = 8
# Fewer characters of a secret tell nothing.
_LEAST_BEGUN_BYTES = 4
# Secrets are seldom longer. In endless lines, a longer one may be cut.
LONGEST_SHAPE_BYTES = 1024

# Whose value is a secret, by the name of a variable, parameter, key or field of a query. A dot, a
# hyphen and a space part words as _ does.
_NAME = re.compile(
    r"password|passwd|passphrase|secret|credential"
    r"|(access|account|aes|api|app|cipher|deploy|encryption|gpg|hmac|master|private|rsa|session"
    r"|shared|signing|ssh|storage)_?key"
    r"|connection_?string|gloo_rendezvous_addr$"
    r"|(amqp|broker|database|db|mongo|mongodb|mysql|postgres|postgresql|redis)_?(uri|url)$"
    r"|(?<!forward)(?<!backward)_(pass|pwd)$"
    r"|(^|_)(auth|authorization|bearer|cookies?|dsn|jwt|sas|sig|signature|token)$",
    re.IGNORECASE,
)
_PARTS_OF_NAMES = str.maketrans(".- ", "___")

# Per kind of secret: a lower-case text to look for first, the pattern, and its replacement.
_SHAPES = (
    # The password in a URL, up to the last @, since passwords hold some. A user alone is no secret.
    ("://", r"://[^/\s:@]*:[^/\s]*@", f"://{HIDDEN}@"),
    # Authorization: Basic …
    (
        "authorization",
        r"(?i)(authorization[\"']?[:=] ?[\"']?)[^\s\"',]{1,64} ?[^\s\"',]*",
        rf"\1{HIDDEN}",
    ),
    ("bearer ", r"(?i)\b(bearer )[\w.~+/=-]{8,}", rf"\1{HIDDEN}"),
    # Keys that say by how they begin whose they are: AWS, Databricks, GitHub, Hugging Face.
    ("akia", r"\bAKIA[0-9A-Z]{16}\b", HIDDEN),
    ("asia", r"\bASIA[0-9A-Z]{16}\b", HIDDEN),
    ("dapi", r"\bdapi[0-9a-f]{32}", HIDDEN),
    ("gh", r"\bgh[opsu]_[0-9A-Za-z]{36}", HIDDEN),
    ("hf_", r"\bhf_[0-9A-Za-z]{30,}", HIDDEN),
)
# Fields with a name: in the query of a URL, and in a mapping that was printed, or is JSON.
_QUERY_FIELD = r"([?&;]([\w.%-]{1,64})=)[^&;\s\"'#]+"
_KEY_AND_VALUE = (
    r"([\"']([\w.-]{1,64})[\"']: ?(?!true|false|null|True|False|None|[{\[(])[\"']?)"
    r"(?:(?<=')(?:[^'\\\n]|\\.)*|(?<=\")(?:[^\"\\\n]|\\.)*|[^\s,}\])]+)"
)
_FIELDS = (("=", _QUERY_FIELD), (":", _KEY_AND_VALUE))


class Redactor:
    """Replaces secrets in texts.

    Args:
        secrets: The secrets themselves. Of one that has several lines each line is one, since
            what ranks print comes in lines.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        lines = {line.strip() for secret in secrets for line in secret.splitlines()}
        # The longest first: one may be a part of another.
        known = sorted((line for line in lines if len(line) >= _LEAST_CHARACTERS), key=len)[::-1]
        self._of_text = _Patterns(known, str)
        self._of_bytes = _Patterns(known, lambda text: text.encode(errors="replace"))
        self._known_bytes = [text.encode(errors="replace") for text in known]
        self.longest_bytes = max((len(text.encode(errors="replace")) for text in known), default=0)
        """The longest secret's. Who reads a text in pieces looks at so much of a piece twice."""

    def __call__(self, text: str) -> str:
        """The text without the secrets, and without what looks like one."""
        return str(self._of_text.hide(text))

    def raw(self, text: bytes) -> bytes:
        """The same of text that is not decoded."""
        return bytes(self._of_bytes.hide(text))

    def without_begun(self, text: bytes) -> bytes:
        """What ``raw`` returned without the first part of a secret at its end: more may come."""
        for size in range(min(self.longest_bytes - 1, len(text)), _LEAST_BEGUN_BYTES - 1, -1):
            if any(secret.startswith(text[-size:]) for secret in self._known_bytes):
                return text[:-size]
        return text

    def name(self, text: str) -> str:
        """The same of a name: brackets have no place in those of folders and metrics."""
        return self(text).replace(HIDDEN, HIDDEN.strip("[]"))

    def value(self, value: Any, name: str = "") -> Any:
        """A value without secrets, also where it is a mapping or a list.

        Args:
            value: What a parameter is set to, or a whole configuration.
            name: The value's name. It may say that all of the value is secret.
        """
        if is_secret_name(name) and not isinstance(value, (bool, type(None))):
            return HIDDEN
        if isinstance(value, Mapping):
            return {self(str(key)): self.value(item, str(key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return self(value) if isinstance(value, str) else value


class _Patterns:
    """All patterns, made for one kind of text.

    Args:
        secrets: The longest first.
        kind: Makes the kind of text, ``str`` or ``bytes``, of a ``str``.
    """

    def __init__(self, secrets: list[str], kind: Any) -> None:
        self._known = re.compile(kind("|".join(map(re.escape, secrets)))) if secrets else None
        self._hidden = kind(HIDDEN)
        self._shapes = [(kind(sign), re.compile(kind(p)), kind(by)) for sign, p, by in _SHAPES]
        self._fields = [(kind(sign), re.compile(kind(p))) for sign, p in _FIELDS]

    def hide(self, text: Any) -> Any:
        if self._known is not None:
            text = self._known.sub(self._hidden, text)
        lower = text.lower()  # Looking for a sign first is far quicker than for its pattern.
        for sign, shape, replacement in self._shapes:
            if sign in lower:
                text = shape.sub(replacement, text)
        for sign, field in self._fields:
            if sign in lower:
                text = field.sub(self._hide_value, text)
        return text

    def _hide_value(self, field: re.Match[Any]) -> Any:
        name = field[2].decode("ascii", "replace") if isinstance(field[2], bytes) else field[2]
        return field[1] + self._hidden if is_secret_name(name) else field[0]


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable or parameter of that name holds a secret."""
    return _NAME.search(name.translate(_PARTS_OF_NAMES)) is not None


def secrets_of(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The values of the variables whose name says that they are secret."""
    return [value for name, value in environment.items() if is_secret_name(name)]
