"""Whether a rank has joined the others is seen from the call that each library makes for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.backends import joined


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Stand-ins, as if the libraries were imported already."""

    class HorovodBasics:
        def init(self, comm: object = None) -> tuple[object, object]:
            return "init", comm

    class CollectiveAllReduceStrategy:
        def __init__(self, *options: object) -> None:
            self.options = options

    def _new_process_group_helper(*options: object) -> tuple[object, ...]:
        return options

    made: dict[str, object] = {
        joined._GROUPS: SimpleNamespace(_new_process_group_helper=_new_process_group_helper),
        joined._BASICS: SimpleNamespace(HorovodBasics=HorovodBasics),
        joined._STRATEGY: SimpleNamespace(CollectiveAllReduceStrategy=CollectiveAllReduceStrategy),
    }
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    monkeypatch.setattr(joined, "_has_joined", False)
    joined.note_when_joined()
    return made


@pytest.mark.parametrize(
    ("name", "call", "result"),
    [
        ("_GROUPS", lambda module: module._new_process_group_helper(1, 2), (1, 2)),
        ("_BASICS", lambda module: module.HorovodBasics().init("comm"), ("init", "comm")),
        ("_STRATEGY", lambda module: module.CollectiveAllReduceStrategy(3).options, (3,)),
    ],
)
def test_the_call_is_noted_and_works_as_before(libraries, name, call, result) -> None:
    assert not joined.has_joined()
    assert call(libraries[getattr(joined, name)]) == result
    assert joined.has_joined()


def test_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in (joined._GROUPS, joined._BASICS, joined._STRATEGY):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(sys.modules)
    joined.note_when_joined()
    assert set(sys.modules) == before


def test_torch_has_the_function_that_all_its_groups_are_made_by() -> None:
    from torch.distributed import distributed_c10d

    assert callable(distributed_c10d._new_process_group_helper)
