"""Checks of the host before a rank begins: other users of its GPUs and memory, and its limits."""
