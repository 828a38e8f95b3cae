"""Names that others chose, before they become a part of a path here.

A tracking server names its runs, and a rank the files that it sends. A name that is joined to a
folder unseen may lead out of it: by ``..``, or by a ``/`` at its beginning.
"""

from __future__ import annotations

import re

from sparkdl_runner.base.foreign_file import is_inside

_RUN_ID = re.compile(r"[0-9A-Za-z-]{1,128}")
# A colon names a drive, a stream of a file or another host; a backslash is a separator elsewhere.
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029:\\]")
# As much as a file's name may have, and a path.
_MOST_BYTES_OF_NAME, _MOST_CHARACTERS_OF_PATH = 255, 1024


def is_run_id(text: str) -> bool:
    """Whether a run may be called so: letters, digits and hyphens, as MLflow's stores make it."""
    return _RUN_ID.fullmatch(text) is not None


def is_relative(path: str) -> bool:
    """Whether a path leads to a file in the folder that it is joined to, on every system."""
    if not is_inside(path) or _NOT_IN_PATHS.search(path):
        return False
    try:
        names = path.encode().split(b"/")
    except UnicodeEncodeError:  # Half of a pair, which no file's name has.
        return False
    is_short = len(path) <= _MOST_CHARACTERS_OF_PATH
    return is_short and max(map(len, names)) <= _MOST_BYTES_OF_NAME
