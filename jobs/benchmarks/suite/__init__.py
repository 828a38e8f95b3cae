"""How cases are measured, summed up and shown."""
