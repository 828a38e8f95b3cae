"""How a table's columns become tensors, and which columns a network's outputs become.

Imports nothing of this package, so that a model of MLflow's can carry a copy of it. By its rule
for a column's values a loader makes batches, too: a network is scored with what it was trained
with. Imported by data, training, estimator and tracking.
"""
