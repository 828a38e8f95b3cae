"""How a driver comes to hold an MLflow run: a new one, one by its id, or that of a name.

Imported by the rest of ``tracking.run``.
"""
