"""Spark for jobs: a session, rows, and places to write to.

Imported by the jobs alone.
"""
