"""The name under which Horovod's tests import ``unittest.mock``, where it is not installed."""

from unittest.mock import *  # noqa: F403
