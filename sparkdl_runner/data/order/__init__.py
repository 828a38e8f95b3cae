"""The order of rows: which rank gets which row in which step, and the state of a resume.

Imports none of the other packages.
"""
