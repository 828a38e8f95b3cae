"""What the driver does for a fit before ranks start: it checks, and converts what they will read.

Imported by estimator and jobs.
"""
