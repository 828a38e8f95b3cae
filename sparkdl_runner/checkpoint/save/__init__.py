"""From a step of the training to a committed checkpoint, beside the training.

Imported by the manager.
"""
