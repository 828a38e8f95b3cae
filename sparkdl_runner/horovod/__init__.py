"""``sparkdl.horovod`` under this package's name, so that existing imports change by one word."""

from sparkdl_runner.worker.driver_log import log_to_driver

__all__ = ["log_to_driver"]
