"""The driver's address for agents, and how long the driver waits for their reports."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

# At the end of a run, for messages that are still on their way.
FLUSH_SECONDS = 3.0
# After a communication error, for the report of its cause: ranks often notice a lost connection
# before the agent of the dead rank has reported the death.
SETTLE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ChannelAddress:
    """The driver's address and the key of its agents. Travels in Spark's closure alone."""

    host: str
    port: int
    key: bytes = field(repr=False)

    def secret_for(self, purpose: str) -> str:
        """A secret in letters and digits that only agents of this attempt can compute."""
        return hmac.digest(self.key, purpose.encode(), "sha256").hex()
