"""``plan_memory``: what is counted, what each strategy makes of it, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparkdl_runner import plan_memory
from sparkdl_runner.rank import world
from sparkdl_runner.training.memory import device_memory
from sparkdl_runner.training.memory.live_bytes import Moment
from sparkdl_runner.training.memory.step_profile import Parameter, StepProfile
from sparkdl_runner.training.memory.strategies import STRATEGIES

pytestmark = pytest.mark.one_lane
ROWS = 16


def layers(count: int = 4, width: int = 64) -> nn.Module:
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(count)])


WEIGHTS = 4 * 64 * 64 * 4
BATCH = torch.ones(ROWS, 64)
VALUES = ROWS * 64 * 4
"""Bytes of a batch, and of each layer's output."""


def needs(strategy: str, ranks: int = 2, **options):
    plan = plan_memory(layers, BATCH, num_proc=ranks, optimizer=torch.optim.Adam, **options)
    return plan.by_strategy[strategy]


def test_ddp_has_everything_and_the_gradients_twice():
    ddp = needs("ddp")
    assert ddp.parameter_bytes == ddp.gradient_bytes == ddp.communication_bytes == WEIGHTS
    steps = 4 * 4  # Adam counts the steps of each parameter.
    assert ddp.optimizer_bytes == 2 * WEIGHTS + steps
    # When the backward pass begins: what the layers got, two gradients of such, and the last
    # layer's own, which is as large as four.
    assert ddp.activation_bytes == pytest.approx((4 + 1 + 4) * VALUES, rel=0.01)
    # When the optimizer works: gradients and buckets, and what one parameter's update takes.
    rest = ddp.peak_bytes - (5 * WEIGHTS + steps)
    assert 0 < rest < WEIGHTS


def test_one_rank_of_tensor_parallel_is_one_process():
    assert needs("ddp", 1).peak_bytes - needs("tensor", 1).peak_bytes == WEIGHTS


@pytest.mark.parametrize(("ranks", "layers_of_one"), [(2, 2), (3, 2), (4, 1), (9, 1)])
def test_zero1_gives_each_parameter_to_one_rank(ranks, layers_of_one):
    one = needs("zero1", ranks)
    assert one.optimizer_bytes == layers_of_one * (2 * WEIGHTS // 4 + 4)
    assert one.parameter_bytes == one.communication_bytes == WEIGHTS


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_fsdp2_divides_the_states(ranks):
    one = needs("fsdp2", ranks)
    assert one.parameter_bytes == one.gradient_bytes == WEIGHTS // ranks
    assert one.optimizer_bytes == pytest.approx(2 * WEIGHTS / ranks, abs=16)
    # A middle layer: parameters, those of the next, gradients, and those that are being reduced.
    assert one.communication_bytes == 4 * WEIGHTS // 4


def test_fsdp2_rounds_up_to_whole_rows():
    plan = plan_memory(lambda: nn.Linear(10, 5, bias=False), torch.ones(1, 10), num_proc=3)
    assert plan.by_strategy["fsdp2"].parameter_bytes == 2 * 10 * 4


def test_tensor_parallel_divides_matrices_alone():
    def model():
        return nn.Sequential(nn.Embedding(8, 4), nn.LayerNorm(4), nn.Linear(4, 8))

    plan = plan_memory(model, torch.ones(3, dtype=torch.int64), num_proc=4)
    whole = (4 + 4 + 8) * 4
    assert plan.by_strategy["tensor"].parameter_bytes == whole + (8 * 4 + 8 * 4) * 4 // 4


@pytest.mark.parametrize(("ranks", "layers_of_one"), [(1, 4), (2, 2), (3, 2), (4, 1), (9, 1)])
def test_a_pipeline_divides_the_model_into_neighbors(ranks, layers_of_one):
    one = needs("pipeline", ranks)
    assert one.parameter_bytes == one.gradient_bytes == layers_of_one * WEIGHTS // 4
    assert one.activation_bytes < needs("ddp").activation_bytes or ranks == 1


def test_a_pipeline_of_one_rank_is_one_process():
    assert needs("pipeline", 1).activation_bytes == needs("ddp", 1).activation_bytes


def test_parts_within_parts_count_once():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
    model = nn.Sequential(encoder, nn.Linear(8, 4))
    plan = plan_memory(model, torch.ones(2, 5, 8), num_proc=1)
    whole = sum(one.numel() * 4 for one in model.parameters())
    for one in plan.by_strategy.values():
        assert one.parameter_bytes == whole


def sizes() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 1000), min_size=1, max_size=8)


@given(
    parts=st.lists(sizes(), min_size=1, max_size=5),
    rows=st.integers(1, 9),
    work=sizes(),
    ranks=st.integers(1, 12),
)
# The part that has most is not the one with the highest peak.
@example(parts=[[0], [0], [5], [5, 1]], rows=3, work=[1, 900], ranks=3)
def test_more_ranks_never_need_more_and_zero1_no_more_than_ddp(parts, rows, work, ranks):
    parameters = [
        Parameter(
            size_bytes=size * rows,
            gradient_bytes=size * rows,
            optimizer_bytes=2 * size * rows,
            rows=rows,
            part=part,
            in_matrix=bool(size % 2),
        )
        for part, found in enumerate(parts)
        for size in found
    ]
    step = StepProfile(
        parameters=parameters,
        buffer_bytes=3,
        moments=[Moment(at % len(parts), at > 3, one, one // 2) for at, one in enumerate(work)],
        saved_bytes=[sum(work) // len(parts)] * len(parts),
        kept_bytes=work[-1],
        update_bytes=work[0],
    )
    for strategy in STRATEGIES.values():
        assert strategy(step, ranks + 1).peak_bytes <= strategy(step, ranks).peak_bytes
    assert STRATEGIES["zero1"](step, ranks).peak_bytes <= STRATEGIES["ddp"](step, ranks).peak_bytes


def test_bf16_and_recomputing_take_less_for_activations():
    class Recomputed(nn.Sequential):
        def forward(self, values):
            for layer in self:
                values = checkpoint(layer, values, use_reentrant=False)
            return values

    def model(kind=nn.Sequential):
        return kind(*[nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))] * 4)

    def activations(model, **options):
        plan = plan_memory(model, torch.ones(512, 8), num_proc=2, **options)
        return plan.by_strategy["ddp"].activation_bytes

    whole = activations(model)
    assert activations(lambda: model(Recomputed)) < 0.5 * whole
    assert activations(model, precision="bf16") < 0.7 * whole


def test_a_model_of_any_size_takes_no_memory_here():
    plan = plan_memory(lambda: layers(100, 1 << 16), torch.ones(1, 1 << 16), num_proc=64)
    assert plan.by_strategy["ddp"].parameter_bytes == 100 << 34
    assert plan.strategy is None


def test_a_model_may_change_its_type_and_share_its_parameters():
    def model():
        network = layers(2)
        network[1].weight = network[0].weight
        return network.double()

    plan = plan_memory(model, BATCH.double(), num_proc=2)
    assert plan.by_strategy["ddp"].parameter_bytes == 64 * 64 * 8


@pytest.mark.parametrize("with_values", [False, True])
def test_sparse_gradients_are_refused_with_the_way_out(with_values):
    table = nn.Sequential(nn.Embedding(9, 4, sparse=True))
    with pytest.raises(ValueError, match=r"gradient of '0.weight' is sparse.*sparse=False"):
        plan_memory(table, torch.zeros(2, 3, dtype=torch.long), num_proc=2, with_values=with_values)


@pytest.mark.parametrize("with_values", [False, True])
def test_the_model_that_is_given_is_not_changed(with_values):
    model = layers()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for given_model in (model, lambda: model):
        plan_memory(given_model, BATCH, num_proc=2, with_values=with_values)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert torch.equal(random, torch.get_rng_state())


def test_values_change_nothing():
    assert needs("ddp", with_values=True) == needs("ddp")


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "NAdam", "RAdam", "Adagrad", "RMSprop", "Adadelta", "Rprop"]
)
def test_the_state_is_that_of_the_optimizer_itself(name):
    make = getattr(torch.optim, name)
    model = layers(1)
    optimizer = make(model.parameters())
    model(BATCH).sum().backward()
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    wanted = sum(one.numel() * 4 for one in tensors if isinstance(one, torch.Tensor))
    plan = plan_memory(lambda: layers(1), BATCH, num_proc=1, optimizer=make)
    assert plan.by_strategy["ddp"].optimizer_bytes == wanted


def chosen(ranks: int, device_memory_bytes: int, batch: torch.Tensor = BATCH) -> str | None:
    plan = plan_memory(layers, batch, num_proc=ranks, device_memory_bytes=device_memory_bytes)
    return plan.strategy


def test_the_first_strategy_that_fits_into_four_fifths_is_taken():
    by_strategy = plan_memory(layers, BATCH, num_proc=4).by_strategy
    for name in ("ddp", "zero1", "fsdp2"):
        enough = -(-by_strategy[name].peak_bytes * 5 // 4)
        assert chosen(4, enough) == name
        assert chosen(4, enough - 2) != name
    assert chosen(4, 1) is None


def test_a_pipeline_needs_a_part_for_each_rank():
    large = BATCH.repeat(256, 1)
    enough = plan_memory(layers, large, num_proc=4).by_strategy["pipeline"].peak_bytes * 3 // 2
    assert chosen(4, enough, large) == "pipeline"
    assert chosen(5, enough, large) is None


def test_the_text_is_a_table_with_a_reason():
    plan = plan_memory(layers, BATCH, num_proc=-2, device_memory_bytes=1 << 30)
    title, head, *rows, reason = str(plan).splitlines()
    assert title == "One of 2 ranks, fp32, with 1 GiB (as given)"
    assert head.split() == [
        *("parameters", "gradients", "optimizer", "activations", "communication", "peak")
    ]
    assert [row.split()[0] for row in rows] == list(STRATEGIES)
    assert rows[0].split()[1:3] == ["64", "KiB"]
    assert reason.startswith("Take ddp: it needs ")
    assert plan.reason == reason
    for batch, advice in ((BATCH, "more ranks"), (BATCH.repeat(256, 1), "a smaller batch")):
        little = plan_memory(layers, batch, num_proc=-2, device_memory_bytes=1000)
        assert little.reason.startswith("None fits: ")
        assert advice in little.reason


def test_what_a_rank_has(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device_memory, "limit_bytes", lambda: None)
    host = device_memory.device_memory(8)
    assert host.place == "this host"
    assert device_memory.device_memory(-4) == (host.size_bytes // 4, "1/4 of this host")
    monkeypatch.setattr(device_memory, "limit_bytes", lambda: 1 << 20)
    assert device_memory.device_memory(-2) == (1 << 19, "1/2 of this container")
    monkeypatch.setattr(device_memory, "limit_bytes", lambda: 1 << 62)
    assert device_memory.device_memory(8) == host


def test_a_rank_of_a_run_has_its_share(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device_memory, "limit_bytes", lambda: 1 << 20)
    monkeypatch.setattr(world, "in_worker", lambda: True)
    own = type("World", (), {"local_size": 8})
    monkeypatch.setattr(world, "current_world", lambda: own)
    assert device_memory.device_memory(16).size_bytes == 1 << 17


class Deciding(nn.Linear):
    def forward(self, values):
        found = super().forward(values)
        return found if found.sum() > 0 else 2 * found


def test_a_model_that_decides_by_values_needs_them():
    with pytest.raises(ValueError, match=r"reads values.*give with_values=True"):
        plan_memory(lambda: Deciding(4, 4), torch.ones(2, 4), num_proc=2)
    assert plan_memory(lambda: Deciding(4, 4), torch.ones(2, 4), num_proc=2, with_values=True)


@pytest.mark.parametrize("batch", [BATCH, (BATCH,), [BATCH], {"input": BATCH}])
def test_a_batch_is_what_the_model_takes(batch):
    assert plan_memory(layers if type(batch) is not dict else layers()[0], batch, num_proc=2)


def test_outputs_without_a_gradient_are_no_part_of_the_loss():
    class Telling(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64, bias=False)

        def forward(self, batch):
            output = self.layer(batch)
            return {"output": output, "best": output.argmax(1), "rows": len(batch), "name": "x"}

    plan = plan_memory(Telling, BATCH, num_proc=1)
    assert plan.by_strategy["ddp"].gradient_bytes == WEIGHTS // 4


def test_a_loss_of_ones_own_takes_any_batch():
    def loss(model, batch):
        return nn.functional.mse_loss(model(batch["features"]), batch["label"])

    batch = {"features": BATCH, "label": BATCH, "name": "x"}
    assert plan_memory(layers, batch, num_proc=2, loss=loss)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"model": 3}, TypeError, "model is 3; expected"),
        ({"model": lambda: 3}, TypeError, r"model\(\) returned 3"),
        ({"model": lambda: 1 / 0}, ValueError, "Making the model failed: ZeroDivisionError"),
        ({"model": nn.ReLU()}, ValueError, "no parameters"),
        ({"batch": torch.ones(2, 3)}, ValueError, "forward pass on this batch failed"),
        ({"batch": {"x": BATCH}}, ValueError, "unexpected keyword argument 'x'"),
        ({"num_proc": 0}, ValueError, "num_proc is 0; expected a number of ranks"),
        ({"num_proc": 1.5}, ValueError, "num_proc is 1.5; expected a number of ranks"),
        ({"precision": "fp16"}, ValueError, "precision is 'fp16'; expected 'fp32' or 'bf16'"),
        (
            {"optimizer": torch.optim.SGD(layers().parameters())},
            TypeError,
            "optimizer is of type SGD; expected a function",
        ),
        ({"optimizer": lambda _: 3}, TypeError, r"optimizer\(…\) returned int"),
        ({"optimizer": torch.optim.LBFGS}, ValueError, "optimizer's step failed.*closure"),
        ({"loss": lambda model, batch: 3.0}, ValueError, "loss has no gradient"),
        ({"device_memory_bytes": 0}, ValueError, "device_memory_bytes is 0; expected 1 or more"),
    ],
)
def test_bad_input_is_told_in_a_sentence(change, kind, words):
    arguments = {"model": layers, "batch": BATCH, "num_proc": 2, **change}
    with pytest.raises(kind, match=words):
        plan_memory(arguments.pop("model"), arguments.pop("batch"), **arguments)
