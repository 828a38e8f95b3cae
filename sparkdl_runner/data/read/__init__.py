"""From files to decoded rows in memory: row groups, the arena that holds them, and its limit.

Imported by ``batches`` and the loader.
"""
