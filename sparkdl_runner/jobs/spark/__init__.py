"""What jobs need of Spark: a session, rows, and places to write to.

Imported by the jobs alone.
"""
