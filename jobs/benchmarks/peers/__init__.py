"""What others do, beside which this package is measured."""
