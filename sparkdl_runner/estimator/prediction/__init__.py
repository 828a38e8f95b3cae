"""The parts of ``TorchModel``: a frame's columns, Spark's function, and saving.

Imported by the modules of estimator.
"""
