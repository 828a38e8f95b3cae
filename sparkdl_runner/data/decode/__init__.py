"""Decodes a column of Arrow: to dense arrays, images, or rows that differ in length.

Pure, without files. Imported by all packages of ``data``.
"""
