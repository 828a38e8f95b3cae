"""``log_model``: logs a network as a model that MLflow loads and Spark scores.

Imported by nothing else of ``tracking``.
"""
