"""The version of this package, which checkpoints, manifests and runs name."""

__version__ = "0.2.0"
