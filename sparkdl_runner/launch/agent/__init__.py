"""The agent: stays with one worker from its start to its end, as a Spark task or on this host.

It starts the worker's process, hands on its output, sees how it ends, and leaves nothing behind.
Imported by the launchers alone, and imports neither torch nor Horovod.
"""
