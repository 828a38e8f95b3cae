"""Views: files of which a data set has some rows and columns only, or to which it adds columns.

Tables of Delta and Iceberg keep files whose rows are deleted in part, whose columns were renamed,
and which lack columns that follow from the partition. Filters leave out further rows.
"""
