"""Loads what of petastorm a conversion and a reader need, and says whether that worked."""

from __future__ import annotations

import json
import sys

try:
    import petastorm.reader
    import petastorm.spark  # noqa: F401

    answer = {}
except BaseException as error:
    answer = {"error": f"{type(error).__name__}: {error}"[:600]}
print("\x1e" + json.dumps({"petastorm": answer}), flush=True)
sys.exit(0)
