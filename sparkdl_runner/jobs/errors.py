"""What a job raises where it cannot do what it was asked for."""

from __future__ import annotations


class ConfigError(ValueError):
    """The configuration cannot work; its one sentence says what to change. Nothing was started."""
