"""Scripts as ranks: what ``torchrun [-m] script.py ARGS`` does, with the folder sent along.

Imported by the runner and the jobs, and in the worker by what it unpickles.
"""
