"""Whether a rank has joined the others is seen from the call that each library makes for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.backends import joined
from sparkdl_runner.launch.backends.joined import (
    HOROVODS_INIT,
    TENSORFLOWS_STRATEGY,
    TORCHS_GROUPS,
)

OWN = "a_library_of_its_own"


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

    class Ranks:
        def meet(self, where: str) -> str:
            return where

    made: dict[str, object] = {
        OWN: SimpleNamespace(Ranks=Ranks),
        TORCHS_GROUPS[0]: SimpleNamespace(_new_process_group_helper=_new_process_group_helper),
        HOROVODS_INIT[0]: SimpleNamespace(HorovodBasics=HorovodBasics),
        TENSORFLOWS_STRATEGY[0]: SimpleNamespace(
            CollectiveAllReduceStrategy=CollectiveAllReduceStrategy
        ),
    }
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    monkeypatch.setattr(joined, "_has_joined", False)
    joined.note_when_joined((OWN, "Ranks.meet"))
    return made


@pytest.mark.parametrize(
    ("joins", "call", "result"),
    [
        (TORCHS_GROUPS, lambda module: module._new_process_group_helper(1, 2), (1, 2)),
        (
            HOROVODS_INIT,
            lambda module: module.HorovodBasics().init("comm"),
            ("init", "comm"),
        ),
        (
            TENSORFLOWS_STRATEGY,
            lambda module: module.CollectiveAllReduceStrategy(3).options,
            (3,),
        ),
        ((OWN, ""), lambda module: module.Ranks().meet("there"), "there"),
    ],
)
def test_the_call_is_noted_and_works_as_before(libraries, joins, call, result) -> None:
    assert not joined.has_joined()
    assert call(libraries[joins[0]]) == result
    assert joined.has_joined()


def test_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name, _ in (TORCHS_GROUPS, HOROVODS_INIT, TENSORFLOWS_STRATEGY):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(sys.modules)
    joined.note_when_joined((OWN, "Ranks.meet"))
    assert set(sys.modules) == before


def test_torch_has_the_function_that_all_its_groups_are_made_by() -> None:
    from torch.distributed import distributed_c10d

    assert callable(distributed_c10d._new_process_group_helper)
