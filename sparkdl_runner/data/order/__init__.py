"""The order of rows: which rank gets which row in which step, and the state of a resume.

The words for rows that belong together, here and in ``read`` and ``batches``::

    row group   a part of a Parquet file; a reader can begin only where one begins
    lane        an equal share of an epoch's rows; a rank owns whole lanes
    segment     the rows of one row group in one lane
    window      segments of a lane that are read side by side
    block       rows of a window that are in memory together, shuffled
    piece       the rows of a block that are of one segment
    page        memory for some rows of a block
    chunk       the rows of several consecutive steps, of all blocks of a rank, gathered at once

Imports none of the other packages.
"""
