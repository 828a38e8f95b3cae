"""From a Spark DataFrame to a data set: check, plan, write, describe, commit.

Imports pyspark where it is used. Imported by ``make_spark_converter`` and ``write_conversion``.
"""
