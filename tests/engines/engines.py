"""The folder of the engines' programs, $ENGINES. They are too large for this repository."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINES = Path(os.environ.get("ENGINES", ROOT.parent / "shared" / "engines")).absolute()
