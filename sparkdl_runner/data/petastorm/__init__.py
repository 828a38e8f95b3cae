"""petastorm, where it can run: its converter writes and its readers read."""
