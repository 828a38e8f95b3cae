"""How the driver runs ranks on Spark: which session serves, its slots and GPUs, its jobs.

Imported by the runner, the jobs and the doctor, and only where ranks run on Spark.
"""
