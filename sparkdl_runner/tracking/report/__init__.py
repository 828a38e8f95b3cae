"""What a person looks at: progress on the driver, and the report of a run.

Imported by the run and the runner.
"""
