"""Where the engines' programs are, which are too large for this repository: the folder ENGINES."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINES = Path(os.environ.get("ENGINES", ROOT.parent / "shared" / "engines")).absolute()
