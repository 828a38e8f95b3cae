"""What ``TorchModel`` is made of: a frame's columns, Spark's function, and how it is kept.

Imported by the modules of estimator.
"""
