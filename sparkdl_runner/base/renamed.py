"""Names that were others in an earlier version, which work for two more versions with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def renamed(**earlier: str) -> Callable[[Function], Function]:
    """Lets a function take arguments by the names that they had before.

    Args:
        **earlier: Today's name by the earlier one.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            if not earlier.keys().isdisjoint(given):
                given = with_todays_names(
                    given, earlier, lambda message: warn(message, stacklevel=4)
                )
            return function(*args, **given)

        return call  # type: ignore[return-value]

    return decorate


def with_todays_names(
    given: Mapping[str, Any], earlier: Mapping[str, str], tell: Callable[[str], object]
) -> dict[str, Any]:
    """The values under today's names.

    Args:
        given: Values by names, earlier or today's.
        earlier: Today's name by the earlier one.
        tell: Is given a sentence for each earlier name.

    Raises:
        TypeError: A value is given by both names.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        today = earlier.get(name, name)
        if today != name:
            if today in given:
                raise TypeError(f"{name} is called {today} now, and both are given: leave one out.")
            tell(sentence(name, today))
        values[today] = value
    return values


def sentence(earlier: str, today: str) -> str:
    """Says that a name is another one now."""
    return f"{earlier} is called {today} now. The earlier name works for two more versions."


def warn(told: str, *, stacklevel: int) -> None:
    """Warns a programmer; of what a job is given, ``shown_text.tell`` tells.

    Args:
        told: A sentence.
        stacklevel: As ``warnings.warn`` takes it: 2 is who calls the caller of this.
    """
    warnings.warn(told, FutureWarning, stacklevel=stacklevel + 1)
