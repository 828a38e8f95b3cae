"""Which step DCP's ``checkpoint_id`` names."""

from __future__ import annotations

import os

from sparkdl_runner.checkpoint.directory.manifest import Name


def step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    """The step in ``step-N``, or in a path or URL that ends so.

    Raises:
        ValueError: It names no step.
    """
    last = os.fspath(checkpoint_id).rstrip("/").rpartition("/")[2]
    name = Name.parse(f"{last}/attempt-0")
    if name is None:
        raise ValueError(
            f"The checkpoint_id {os.fspath(checkpoint_id)!r} names no step; expected one that ends "
            "in step-N, such as checkpoint_id='step-100'."
        )
    return name.step
