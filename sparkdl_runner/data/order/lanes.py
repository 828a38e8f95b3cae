"""Into how many lanes the rows are cut."""

from __future__ import annotations

import math


def choose_lanes(given: int | None, global_batch_size: int, world_size: int, most: int) -> int:
    """The number of lanes.

    By default the largest power of two up to ``most`` that divides the global batch, so that most
    world sizes agree on it. If the world size does not divide that, their least common multiple.

    Args:
        given: The caller's choice, if any.
        global_batch_size: A multiple of ``world_size``.
        world_size: Number of ranks.
        most: Lanes that one rank's memory allows.

    Raises:
        ValueError: The ranks cannot share ``given`` lanes.
    """
    if given is None:
        base = math.gcd(global_batch_size, 1 << (max(1, most).bit_length() - 1))
        return math.lcm(base, world_size)
    if given % world_size:
        raise ValueError(
            f"lanes={given} cannot be shared evenly by {world_size} ranks. Give a multiple of "
            f"{world_size} that divides the global batch of {global_batch_size} rows."
        )
    return given


def check_lanes(lanes: int, global_batch_size: int) -> None:
    """Raises a ValueError that names lanes that fit, unless every step can take as many of each."""
    if global_batch_size % lanes:
        raise ValueError(
            f"lanes={lanes} does not divide the global batch of {global_batch_size} rows: every "
            "step takes the same number of rows from each lane. Lanes that fit: "
            f"{_some_divisors(global_batch_size)}."
        )


def _some_divisors(number: int) -> str:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = sorted({*low, *(number // n for n in low)})
    return ", ".join(map(str, divisors[:12])) + (", …" if len(divisors) > 12 else "")
