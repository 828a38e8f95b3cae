"""The peers beside which this package is measured."""
