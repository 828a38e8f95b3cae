"""The two hosts are those of the tests beside these."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "standalone"))
