"""What runs in processes of its own: ranks, readers and trainings."""
