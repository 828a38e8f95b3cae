"""``log_model``: a network as files that can be loaded, asked and scored.

Imported by nothing else of ``tracking``.
"""
