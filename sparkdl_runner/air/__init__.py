"""``distributed`` and ``runtime`` of ``databricks.air`` and ``serverless_gpu``, on any machine."""

from sparkdl_runner.air import runtime as runtime
from sparkdl_runner.air.decorator import DistributedFunction, distributed

__all__ = ["DistributedFunction", "distributed"]
