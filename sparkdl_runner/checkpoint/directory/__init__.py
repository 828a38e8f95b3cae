"""What lies in a directory of checkpoints, and how it is written and read.

Knows nothing of ranks or of training.
"""
