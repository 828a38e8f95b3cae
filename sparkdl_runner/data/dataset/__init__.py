"""What a data set on disk is: its manifest, its files, and whether they are what was written.

Imports ``decode`` alone. Imported by what converts and by what reads.
"""
