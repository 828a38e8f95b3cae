"""The benchmarks of ``jobs/benchmark.py``; no file here is a job of its own.

``parts`` say what is measured, each as cases with their peers and figures; ``suite`` measures them
in turns, sums them up and shows them. The other folders are what parts need.
"""
