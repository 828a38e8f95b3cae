"""Text of others in MLflow's descriptions, which its page shows as Markdown with HTML in it."""

from __future__ import annotations

import html

# ``<`` and ``&`` become entities: in MLflow's page a tag after a backslash stays a tag.
_SIGNS = "\\`*_[]|~!"


def escaped(text: str) -> str:
    """A text in one line, of which no sign is read as Markdown or HTML."""
    text = html.escape(" ".join(text.split()), quote=False)
    for sign in _SIGNS:
        text = text.replace(sign, f"\\{sign}")
    return text
