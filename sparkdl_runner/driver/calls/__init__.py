"""A call of a runner, apart from its ranks: checks, its future, and the spare workers it leaves.

Imported by the runners.
"""
