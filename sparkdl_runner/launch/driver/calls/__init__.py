"""A call of a runner, apart from its ranks: what is called, its future, spare workers it leaves.

Imported by the runners.
"""
