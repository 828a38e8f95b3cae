"""One training's MLflow run on the driver: opened, written to, closed.

Imported by the runner and the jobs.
"""
