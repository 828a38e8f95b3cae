"""Output for people: progress on the driver, and the report of a run.

Imported by the run and the runner.
"""
