"""Network namespaces, where this machine lets tests make them."""

from __future__ import annotations

import os
import subprocess


def ip(*arguments: str) -> str:
    """Runs iproute2's ``ip``. Returns what it prints."""
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def why_not() -> str | None:
    """Why this machine cannot make hosts, or None if it can."""
    probe = f"sdl-probe-{os.getpid()}"  # Test processes that run side by side all look.
    try:
        ip("netns", "add", probe)
        ip("netns", "delete", probe)
    except FileNotFoundError:
        return "there is no 'ip' command (Debian: apt-get install iproute2)"
    except subprocess.CalledProcessError as error:
        return f"this machine forbids network namespaces: {error.stderr.strip()}"
    return None
