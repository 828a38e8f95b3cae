"""The driver: the process in which a person calls ``run``.

It starts the ranks, watches them, shows what they say, and decides when an attempt is over.
Imported by the runners, the jobs and the doctor; never by an agent or a worker.
"""
