"""What ``--json`` prints, as docs/jobs.md has it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "jobs.md"
COMMON = {"format", "version", "command", "exit_code"}


def documented() -> dict[str, set[str]]:
    """The fields of each command's document, without those that all have."""
    section = PAGE.read_text().partition("## For programs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w -]+)` \| (.*) \|$", section, re.MULTILINE)
    fields: dict[str, set[str]] = {}
    for name, text in rows:
        # Without the fields of the objects in them, and the values that they may have.
        own = re.sub(r": (an object|a list of objects|\").*", "", text)
        fields[name] = set(re.findall(r"`(\w+)`", own))
    fields["train"] |= fields["run"]
    return fields


def document_of(command: str, printed: str) -> dict[str, Any]:
    """The document, which is all that was printed and has the page's fields, or an error."""
    (line,) = printed.splitlines()
    document: dict[str, Any] = json.loads(line)
    own = {"error"} if "error" in document else documented()[command]
    assert document.keys() == COMMON | own
    return document
