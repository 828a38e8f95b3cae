"""A fit on the driver before ranks start: checks, and the conversion of their data.

Imported by estimator and jobs.
"""
