"""Where agents reach the driver, and how long the end of a run waits for their words."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

# How long the end of a run waits for words that are still on their way.
FLUSH_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class ChannelAddress:
    """The driver's address and the key of its agents. Travels in Spark's closure alone."""

    host: str
    port: int
    key: bytes = field(repr=False)

    def secret_for(self, purpose: str) -> str:
        """A word that all agents of the attempt can say and nobody else, in letters and digits."""
        return hmac.digest(self.key, purpose.encode(), "sha256").hex()
