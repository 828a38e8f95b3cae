"""The network namespaces of the standalone tests serve here as well."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "standalone"))
