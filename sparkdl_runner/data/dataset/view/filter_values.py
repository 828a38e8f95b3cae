"""Makes values that filters compare with into values of the columns' own types.

``price < 99.995`` of a column of two digits is ``price <= 99.99``: the largest value of the type
that is not above the one that was given, and whether both are equal, say it for every comparison.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

NEVER: tuple[str, Any] = ("in", [])
ALWAYS: tuple[str, Any] = ("valid", None)
"""Every value fulfils it that is not null."""

_DIGITS = Context(prec=80)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PER_MICROSECOND = {
    "s": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "us": Decimal(1),
    "ns": Decimal(1000),
}


def plain(value: Any) -> Any:
    """A value of NumPy as one of Python."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        kind = "datetime64" if isinstance(value, np.datetime64) else "timedelta64"
        return value.astype(f"{kind}[us]").item()
    return value.item() if hasattr(value, "item") else value


def comparison(operator: str, value: Any, wanted: pa.DataType) -> tuple[str, Any]:
    """An operator and a value of a type that compare as an operator and any value do.

    Raises:
        ValueError, TypeError, ArithmeticError, pa.ArrowException: Such values do not compare.
    """
    floor, is_equal = floor_as(value, wanted)
    if is_equal:
        return operator, floor
    if operator in ("=", "=="):
        return NEVER
    if operator == "!=":
        return ALWAYS
    if floor in (math.inf, -math.inf):
        return ALWAYS if (operator[0] == "<") == (floor > 0) else NEVER
    return operator[0] + ("=" if operator[0] == "<" else ""), floor


def floor_as(value: Any, wanted: pa.DataType) -> tuple[Any, bool]:
    """The largest value of a type that is not above ``value``, and whether both are equal.

    The largest is infinity if ``value`` is above all of the type, and minus infinity if it is below
    them. Types without a next value, such as texts, only take what they can hold.
    """
    types = pa.types
    if types.is_boolean(wanted):
        if isinstance(value, (str, bool)) or value in (0, 1):
            return pa.scalar(value).cast(wanted).as_py(), True
        raise ValueError("it is true or false")
    if types.is_integer(wanted):
        low = -(2 ** (wanted.bit_width - 1)) if types.is_signed_integer(wanted) else 0
        return _floor(_number(value, Decimal), low, low + 2**wanted.bit_width - 1, int)
    if types.is_floating(wanted):
        return pa.scalar(float(_number(value, Decimal)), wanted).as_py(), True
    if types.is_decimal(wanted):
        most = 10**wanted.precision - 1
        number = _number(value, lambda unscaled: Decimal(repr(unscaled))).scaleb(
            wanted.scale, _DIGITS
        )
        return _floor(
            number, -most, most, lambda whole: Decimal(whole).scaleb(-wanted.scale, _DIGITS)
        )
    if types.is_date(wanted):
        return _day(value)
    if types.is_timestamp(wanted):
        return _ticks(_instant(value), wanted, getattr(value, "nanosecond", 0))
    if types.is_time(wanted):
        moment = time.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, time):
            raise TypeError("it is a time of the day")
        since = datetime.combine(_EPOCH.date(), moment) - datetime.combine(_EPOCH.date(), time())
        return _ticks(since, wanted)
    if types.is_duration(wanted):
        if not isinstance(value, timedelta):
            raise TypeError("it is a length of time: give a timedelta")
        return _ticks(value, wanted, getattr(value, "nanoseconds", 0))
    if isinstance(value, datetime):
        raise TypeError("give it as it stands in the column")
    return pa.scalar(value).cast(wanted).as_py(), True


def _number(value: Any, of_float: Any) -> Decimal:
    if isinstance(value, (float, np.floating)):
        return Decimal(of_float(float(value)))
    if not isinstance(value, (int, str, Decimal)):
        raise TypeError("it is a number")
    return Decimal(value)


def _floor(number: Decimal, low: int, high: int, make: Any) -> tuple[Any, bool]:
    """The largest whole number in a range that is not above a number, as ``make`` makes it."""
    if number.is_nan():
        raise ValueError("it is a number")
    if number > high:
        return math.inf, False
    if number < low:
        return -math.inf, False
    floor = math.floor(number)
    return make(floor), floor == number


def _day(value: Any) -> tuple[Any, bool]:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, date):
        raise TypeError("it is a day: give a date, or a text such as '2024-01-31'")
    if not isinstance(value, datetime):
        return value, True
    if value.tzinfo is not None:
        raise ValueError("it is a day, which has no time zone")
    return value.date(), value.time() == time()


def _instant(value: Any) -> timedelta:
    """The time since 1970 in UTC, which is also the zone of what has none."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise TypeError("it is a time: give a datetime, or a text such as '2024-01-31T12:00:00'")
    return (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH


def _ticks(since: timedelta, wanted: pa.DataType, nanoseconds: int = 0) -> tuple[Any, bool]:
    """A time in the unit of a type."""
    microseconds = Decimal(since // _MICROSECOND) + Decimal(nanoseconds).scaleb(-3)
    ticks = microseconds * _PER_MICROSECOND[wanted.unit]
    storage = pa.int32() if wanted.bit_width == 32 else pa.int64()
    most = 2 ** (wanted.bit_width - 1) - 1
    return _floor(ticks, -most, most, lambda whole: pa.scalar(whole, storage).cast(wanted).as_py())
