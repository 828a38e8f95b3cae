"""One training's MLflow run as the driver keeps it: opened, told, delivered, closed.

Imported by the runner and the jobs.
"""
