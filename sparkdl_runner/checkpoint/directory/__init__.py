"""The files in a directory of checkpoints, and how they are written and read.

Knows nothing of ranks or of training.
"""
