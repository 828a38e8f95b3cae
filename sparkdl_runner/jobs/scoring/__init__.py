"""The parts of the score job: matching columns to the model's inputs, and writing scores.

Imported by that job alone.
"""
