"""``Trainer``: a loop over the batches of all ranks, and what it is made of.

Knows nothing of Spark.
"""
