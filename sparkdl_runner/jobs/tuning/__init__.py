"""The parts of the tune job: settings, Optuna's study, its trials, pruning, and plots.

Imported by ``jobs.tune``.
"""
