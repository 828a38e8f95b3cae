"""Prepares a loader's columns: keeps rows for the shuffle, packs them, reads Spark's own structs.

Pure, without files. Numbers become arrays by ``tensors``. Imported by all packages of ``data``.
"""
