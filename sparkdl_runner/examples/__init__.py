"""Examples of trainings, made of public functions alone.

Imported by the train job, for ``--example``.
"""
