"""The worker: the process in which one rank's function runs.

It is started by ``python -m sparkdl_runner.launch.worker``.

It gets the function by a pipe, runs it, and tells its agent that it lives. Imports no pyspark.
Imported by its agent, for what both must agree on.
"""
