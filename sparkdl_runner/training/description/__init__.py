"""A training by settings, in the ranks: makes its objects, and logs the model.

Imported by jobs alone, and by ranks.
"""
