"""What ranks do of a training that settings describe: make things, and log the model.

Imported by jobs alone, and by ranks.
"""
