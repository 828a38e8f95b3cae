"""petastorm, where it can run: its converter writes and its readers read.

Imports petastorm where it is used. Imported by the converter and its loaders.
"""
