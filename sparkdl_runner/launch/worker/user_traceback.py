"""The part of an exception's traceback that is of the user's code."""

from __future__ import annotations

import types

# The packages through which a rank comes to the user's function.
_CALLERS = {f"sparkdl_runner.{name}" for name in ("launch.worker", "launch.wire", "horovod")}
# If a script cannot be compiled, or ends by an exit code, no frame is its own.
_SCRIPT = "sparkdl_runner.launch.script"


def user_traceback(error: BaseException) -> types.TracebackType | None:
    """Drops the leading frames of what called the user's function, which tell nothing about it."""
    frame = error.__traceback__
    while frame is not None:
        package = frame.tb_frame.f_globals.get("__package__")
        if package != _SCRIPT and (package not in _CALLERS or frame.tb_next is None):
            break
        frame = frame.tb_next
    return frame
