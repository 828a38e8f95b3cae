"""Names of this start of this machine and of this process's namespaces, as Linux shows them."""

from __future__ import annotations

import os
from pathlib import Path


def boot_id() -> str:
    """A text that changes each time the machine starts; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def namespace(kind: str) -> str:
    """The namespace that this process is in, of a kind such as ``net``; empty if unknown."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""
