"""Tracking in a rank: our functions, and what MLflow's own do there.

Imported by the worker, and by nothing of the driver.
"""
