"""What a reader makes of files that hold more, or less, than a data set's rows and columns.

Tables of Delta and Iceberg keep files whose rows are deleted in part, whose columns were renamed,
and which lack columns that follow from the partition. Filters leave out further rows.
"""
