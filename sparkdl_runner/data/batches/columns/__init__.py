"""Which columns a loader reads, and what each becomes in a batch, before a row is read."""
