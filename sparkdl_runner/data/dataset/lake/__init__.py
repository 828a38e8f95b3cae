"""Tables of Delta and Iceberg, whose files are read in place: one snapshot of each, and no other.

One file a format finds the snapshot's files; ``describe.py`` makes a manifest of them.
"""
