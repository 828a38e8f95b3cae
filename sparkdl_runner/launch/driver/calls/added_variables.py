"""Variables that a drop-in sets for its ranks, besides those that the user's RunConfig names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sparkdl_runner.launch.config import RunConfig


def with_variables(config: RunConfig, variables: Mapping[str, str], whose: str) -> RunConfig:
    """Adds variables to ``RunConfig.environment``.

    Args:
        config: What the user gave.
        variables: The variables; where both set one, these count.
        whose: Who sets them, for the error.

    Raises:
        ValueError: There are variables, and ``config.environment`` is a list of patterns.
    """
    if not variables:
        return config
    given = config.environment
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(
            f"RunConfig.environment is a list of patterns, and {whose} sets variables besides "
            f"({', '.join(variables)}): give environment as a dict of names and values."
        )
    return replace(config, environment={**(given or {}), **variables})
