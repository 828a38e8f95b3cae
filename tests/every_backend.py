"""The backends on which each test of ranks runs that is the same for all: add yours here."""

EVERY_BACKEND = ("horovod", "torch")
"""TensorFlow is too large for the lanes; ``tests/tensorflow_ranks`` has its tests."""
