"""Errors about the values of a column. They do not know its name: whoever catches them adds it."""

from __future__ import annotations


class BadColumnError(ValueError):
    """A column's values are not what was expected."""


class UnexpectedNullError(BadColumnError):
    """There are nulls, and no value to put in their place."""

    def __init__(self) -> None:
        super().__init__("nulls were found where none were expected")


class WrongLengthError(BadColumnError):
    """A list has another length than all should have.

    Attributes:
        length: Its length.
        expected: That of all.
    """

    def __init__(self, length: int, expected: int) -> None:
        super().__init__(f"a list of length {length} was found where {expected} was expected")
        self.length = length
        self.expected = expected


class BadValueError(BadColumnError):
    """One value cannot become a tensor's number.

    Attributes:
        problem: What is wrong with it.
        remedy: What to do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"it {problem}")
        self.problem = problem
        self.remedy = remedy
