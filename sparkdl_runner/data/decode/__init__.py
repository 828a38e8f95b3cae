"""What becomes of a loader's columns: how rows are kept, packed, and read of Spark's own structs.

Pure, without files. Numbers become arrays by ``network``. Imported by all packages of ``data``.
"""
