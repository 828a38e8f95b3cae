"""Horovod's refusals of an operation, which it raises as it does the loss of a peer."""

from __future__ import annotations

import re

# From ``controller.cc``, ``operation_manager.cc`` and ``common.h`` of 0.28.1.
_TEXTS = re.compile(
    r"^(Mismatched |No \w+ operation enabled|Rank zero tried to "
    r"|\w+ is not supported (with Join|yet))|with the same name as another tensor"
)


def is_one(error: BaseException) -> bool:
    """Whether the error says that what a rank asked for cannot be done, with all peers there."""
    return _TEXTS.search(_text(error)) is not None


def advice(error: BaseException) -> str:
    """What to do where Horovod's own words do not say; else ""."""
    if "No Adasum operation enabled" not in _text(error):
        return ""
    return (
        "Adasum is in builds of Horovod with MPI only, and ranks here meet over gloo, for which it "
        "has none. Take op=hvd.Average, and multiply the learning rate by hvd.size(), after some "
        "epochs in which it grows to that."
    )


def _text(error: BaseException) -> str:
    """A text of Horovod's own: to show anything else would run what the function's objects do."""
    for one in error.args:
        if type(one) is RuntimeError:  # HorovodInternalError holds what it was raised from.
            one = one.args[0] if one.args else ""
        if isinstance(one, str):
            return one
    return ""
