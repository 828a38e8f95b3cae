"""A network between tables: which columns it takes, and which columns its outputs become.

Imports nothing of this package, so that a model of MLflow's can carry a copy of it.
Imported by training, estimator and tracking.
"""
