"""Trainings to begin with, made of the same public parts as anyone's own."""
