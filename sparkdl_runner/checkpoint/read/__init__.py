"""How the ranks of a restore read a checkpoint: each host reads each file once at most."""

from __future__ import annotations
