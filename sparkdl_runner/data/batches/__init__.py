"""From decoded rows to the batches that a training sees, on the CPU or a GPU.

Imported by the loader alone.
"""
