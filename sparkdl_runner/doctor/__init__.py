"""``sparkdl-runner doctor``: what would keep a run from working here, and what to do about it."""
