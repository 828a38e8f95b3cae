"""What ``jobs/benchmark.py`` runs; nothing here is a job of its own."""
