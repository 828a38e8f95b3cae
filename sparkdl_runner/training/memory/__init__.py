"""How much memory one rank of a training needs, by strategy.

A step runs on tensors without values; the rest is arithmetic.
"""

from sparkdl_runner.training.memory.memory_plan import MemoryPlan, plan_memory
from sparkdl_runner.training.memory.strategies import RankMemory

__all__ = ["MemoryPlan", "RankMemory", "plan_memory"]
