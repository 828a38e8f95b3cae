"""A worker tells its last collectives: torch's by the recorder, Horovod's by frames."""

from __future__ import annotations

import json
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.worker import collectives

C10D = "torch._C._distributed_c10d"


def entry(number, call="all_reduce", size=(1000,), group=("0", "default_pg"), **more):
    kind = {"input_dtypes": ["Float"], "input_sizes": [list(size)]}
    place = {"collective_seq_id": number, "process_group": list(group), "is_p2p": False}
    state = {"retired": True, "state": "scheduled", "profiling_name": f"gloo:{call}"}
    return {**kind, **place, **state, **more}


def last_calls():
    """What this thread tells once it is asked again, since the number of calls is the same."""
    collectives._counts = [b"others"]
    assert not collectives.last_calls(threading.get_ident())
    return collectives.last_calls(threading.get_ident())


@pytest.fixture
def recorder(monkeypatch):
    """Puts a recorder with these entries in place of torch's; groups are those of rank 1 of 3."""

    def put(*entries, kind="fr"):
        def dumped(includeCollectives=True):  # noqa: N803 - torch's name
            shown = {"entries": entries} if includeCollectives else {"pg_status": len(entries)}
            return json.dumps(shown).encode()

        dump = {f"_dump_{kind}_trace_json": dumped}
        world = SimpleNamespace(
            pg_names={"world": "0", "pair": "1"},
            pg_group_ranks={"world": {0: 0, 1: 1, 2: 2}, "pair": {2: 1, 1: 0}},
        )
        torch = SimpleNamespace(distributed_c10d=SimpleNamespace(_world=world))
        monkeypatch.setitem(sys.modules, C10D, SimpleNamespace(**dump))
        monkeypatch.setitem(sys.modules, "torch.distributed", torch)

    monkeypatch.setenv("WORLD_SIZE", "3")
    return put


@pytest.mark.parametrize("kind", ["fr", "nccl"])
def test_the_newest_calls_of_each_group(recorder, kind):
    recorder(
        *(entry(number) for number in range(1, 30)),
        entry(1, "scatter", group=("1", "undefined")),
        entry(30, "broadcast", retired=False),
        entry(5, "send", is_p2p=True),
        kind=kind,
    )
    world, *_, pair = last_calls()
    assert world == {
        "call": "broadcast(Float [1000])",
        "where": "group default_pg",
        "ranks": None,
        "number": 30,
        "done": False,
    }
    assert pair == {
        "call": "scatter()",  # Shapes may differ there.
        "where": "group 1",
        "ranks": [1, 2],
        "number": 1,
        "done": True,
    }
    numbers = [call["number"] for call in last_calls()]
    assert numbers == [*range(30, 22, -1), 1]


CALLS = ["all_reduce", "broadcast", "all_gather", "gather", "scatter"]


@pytest.mark.parametrize("size", [[8], [4, 2], [9]])
@pytest.mark.parametrize("other", CALLS)
@pytest.mark.parametrize("call", CALLS)
def test_calls_are_alike_where_torchs_own_analysis_says_that_they_match(
    recorder, call, other, size
):
    """Of two ranks, by the tool that torch has for its recorder's files."""
    utils = pytest.importorskip("torch.distributed.flight_recorder.components.utils")
    result = {"output_sizes": [[16] if call == "all_gather" else [8]], "output_dtypes": ["Float"]}
    both = [
        entry(1, one, of, p2p_seq_id=0, time_created_ns=0, **result)
        for one, of in ((call, [8]), (other, size))
    ]
    names = set()
    for one in both:
        recorder(one)
        names |= {found["call"] for found in last_calls()}
    verdict = utils.match_one_event(*both, {"0": {0, 1}}, "0").state.name
    assert (len(names) == 1) == (verdict == "FULLY_MATCHED")


def test_what_is_told_is_small_however_many_groups_and_tensors_there_are(recorder):
    many = {"input_dtypes": ["Float"] * 99, "input_sizes": [[7]] * 99}
    recorder(*(entry(n, group=(str(g), "x" * 999), **many) for g in range(20) for n in range(10)))
    assert len(json.dumps(last_calls())) < 64 * 1024


def test_nothing_is_told_while_collectives_are_called(recorder):
    for number in range(1, 4):
        recorder(*(entry(one) for one in range(number)))
        assert collectives.last_calls(threading.get_ident()) is None
    assert len(collectives.last_calls(threading.get_ident())) == 3
    assert len(collectives.last_calls(threading.get_ident())) == 3


def test_a_torch_without_a_recorder_tells_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, C10D, SimpleNamespace())
    assert last_calls() == []
    monkeypatch.delitem(sys.modules, C10D)
    assert last_calls() == []


@pytest.mark.parametrize(
    ("has", "given", "then"),
    [
        ((), {}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
        ((), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}),
        ((), {"TORCH_FR_BUFFER_SIZE": "0"}, {"TORCH_FR_BUFFER_SIZE": "0"}),
        (("_dump_fr_trace_json",), {}, {}),
    ],
)
def test_the_recorder_is_switched_on_where_it_is_off_and_the_user_has_not_said(
    monkeypatch, has, given, then
):
    monkeypatch.setitem(sys.modules, C10D, SimpleNamespace(**dict.fromkeys(has)))
    monkeypatch.setattr(collectives, "os", SimpleNamespace(environ=given))
    collectives.record()
    assert given == then
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ


class Tensor:
    dtype, shape = "torch.float32", (3, 4)


def horovod(wait):
    """Horovod's functions, which call ``wait`` where the ranks would wait for one another."""
    functions = {"wait": wait}
    exec(compile(CALL, "/x/horovod/torch/mpi_ops.py", "exec"), functions)
    return functions


CALL = """
def synchronize(handle):
    wait()
def allreduce_(tensor, name=None, process_set=None):
    handle = 17
    return synchronize(handle)
class Set:
    process_set_id, ranks = 0, [2, 3]
"""


@pytest.mark.parametrize(
    ("values", "call", "where"),
    [
        ({"name": "grad", "id": 0}, "allreduce_ grad(torch.float32 [3, 4])", "all ranks"),
        ({"name": None, "id": 0}, "allreduce_ 17(torch.float32 [3, 4])", "all ranks"),
        ({"name": "g", "id": 1}, "allreduce_ g(torch.float32 [3, 4])", "process set [2, 3]"),
    ],
)
def test_the_call_of_horovod_that_a_rank_is_in(values, call, where):
    found = []
    hvd = horovod(lambda: found.extend(collectives.last_calls(threading.get_ident())))
    hvd["Set"].process_set_id = values["id"]
    hvd["allreduce_"](Tensor(), values["name"], hvd["Set"]())
    (of_it,) = found
    assert (of_it["call"], of_it["where"], of_it["done"]) == (call, where, False)
    assert of_it["ranks"] == ([2, 3] if values["id"] else None)


def test_the_call_that_raised_is_found_in_the_error():
    hvd = horovod(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        hvd["allreduce_"](Tensor(), "grad")
    assert collectives.call_of(raised.value) == "allreduce_ grad(torch.float32 [3, 4])"
    assert collectives.call_of(ValueError("elsewhere")) == ""
