"""A call of a runner, apart from its ranks: its future, and the spare workers that it leaves.

Imported by the runners.
"""
