"""Tracking in a rank: what the function says, and MLflow's own functions beside it.

Imported by the worker, and by nothing of the driver.
"""
