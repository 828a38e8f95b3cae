"""What a column of Arrow becomes: dense arrays, images, rows that differ in length.

Pure, without files. Imported by all packages of ``data``.
"""
