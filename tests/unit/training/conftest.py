"""What all tests of trainings share."""

from checkpoint_fixtures import _one_thread, _torch_has_set_itself_up, in_memory

__all__ = ["_one_thread", "_torch_has_set_itself_up", "in_memory"]
