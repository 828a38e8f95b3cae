"""A network is saved as a graph where it can be, and opened only where it is trusted."""

from __future__ import annotations

import errno
import io
import json
import zipfile
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from sparkdl_runner.tensors import saved
from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.exporting import example_of
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Output
from sparkdl_runner.tensors.predictor import Description
from sparkdl_runner.tensors.served import _load_pyfunc


class Words(nn.Module):
    """A sequence with its mask, numbers by name, and two outputs."""

    def __init__(self):
        super().__init__()
        self.words, self.kind = nn.Embedding(9, 3), nn.Linear(5, 4)

    def forward(self, words, others, words_mask):
        both = torch.cat([(self.words(words) * words_mask[..., None]).sum(1), others], 1)
        return {"kind": self.kind(both), "price": both[:, 0]}


class Branching(nn.Linear):
    """Has no graph: what it does depends on its numbers."""

    def __init__(self):
        super().__init__(2, 1)

    def forward(self, numbers):
        return super().forward(numbers) if float(numbers.sum()) > 0 else numbers[:, :1]


WORDS = Description(
    inputs=Inputs({"words": ("w",), "others": ("a", "b")}, ("words_mask",)),
    columns=(
        Column(name="w", kind="list", dtype="int64", shape=(None,), pad=4),
        Column(name="a"),
        Column(name="b"),
    ),
    outputs={"kind": Output("multiclass"), "price": Output("regression")},
)
FLAT = Description(
    inputs=Inputs({"": ("x",)}),
    columns=(Column(name="x", kind="list", shape=(2,)),),
    outputs={"y": Output("regression")},
)


@pytest.fixture(autouse=True)
def _same_numbers():
    """A graph adds in another order than its network, which shows where a sum is nearly zero."""
    torch.manual_seed(1)


def opened(folder, **options):
    options = {"trust": True, "how_to_trust": "say so", **options}
    return saved.load(folder, **options)


def test_a_graph_answers_as_its_network(tmp_path):
    network = Words().eval()
    assert saved.save(tmp_path, network, description=WORDS, about={}) == ("graph", "")
    found = opened(tmp_path)
    assert found.description == WORDS
    for rows in (1, 5):
        positional, named = WORDS.inputs(example_of(WORDS.columns, rows))
        expected, made = network(*positional, **named), found.module(*positional, **named)
        assert all(torch.allclose(made[label], expected[label]) for label in expected)
    again = tmp_path / "again"
    again.mkdir()
    saved.save(again, found.module, graph=found.graph, description=WORDS, about={})
    assert opened(again).graph == found.graph


def test_what_has_no_graph_is_saved_by_the_name_of_what_makes_it(tmp_path):
    network = Branching().eval()
    form, reason = saved.save(tmp_path, network, description=FLAT, factory=Branching, about={})
    assert (form, bool(reason)) == ("reference", True)
    found = opened(tmp_path)
    assert isinstance(found.module, Branching)
    assert found.factory is Branching
    assert torch.equal(found.module.weight, network.weight)
    assert saved.reference_of(lambda: network) is None
    assert saved.reference_of(None) is None


def test_a_mounted_volume_that_renames_and_maps_nothing_takes_a_network(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("safetensors.torch.save_file", refuse)
    monkeypatch.setattr("safetensors.torch.load_file", refuse)
    network = Branching().eval()
    saved.save(tmp_path, network, description=FLAT, factory=Branching, about={})
    assert torch.equal(opened(tmp_path).module.weight, network.weight)
    assert torch.equal(opened(tmp_path, into=Branching()).module.weight, network.weight)


def test_a_pickle_is_opened_only_where_it_is_trusted(tmp_path, monkeypatch):
    network = Branching().eval()
    about = {"names": {"y": {"prediction": "prediction"}}, "batch_size": 2}
    form, _ = saved.save(tmp_path, network, description=FLAT, about=about)
    assert form == "pickle"
    with pytest.raises(saved.UntrustedModelError, match=r"is a pickle.*can run any code.*say so"):
        opened(tmp_path, trust=False)
    assert torch.equal(opened(tmp_path).module.weight, network.weight)
    served = _load_pyfunc(str(tmp_path))
    found = served.predict(
        pd.DataFrame({"x": [[1.0, 2.0], [3.0, 1.0], [2.0, 2.0]]}, index=[7, 8, 9])
    )
    assert list(found.index) == [7, 8, 9]
    with pytest.raises(ValueError, match=r"no column 'x'.*It has: z"):
        served.predict(pd.DataFrame({"z": [1]}))


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def with_pickled_weight(graph, value):
    """A graph whose first weight is a pickle, which its own description asks torch to open."""
    pickled, made = io.BytesIO(), io.BytesIO()
    torch.save(value, pickled)
    with zipfile.ZipFile(io.BytesIO(graph)) as source, zipfile.ZipFile(made, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/weights/weight_0"):
                content = pickled.getvalue()
            if name.endswith("/model_weights_config.json"):
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true', 1)
            target.writestr(name, content)
    return made.getvalue()


calls = []


def called_by_name():
    calls.append("called")
    return Branching()


@pytest.fixture
def attack(request, tmp_path):
    """A saved network that runs code when it is opened, and whether it did."""
    network, mark = nn.Linear(2, 1).eval(), tmp_path / "mark"
    folder = tmp_path / "network"
    folder.mkdir()
    saved.save(folder, network, description=FLAT, about={"names": {}, "batch_size": 2})
    graph, about = folder / saved.GRAPH_FILE, folder / saved.ABOUT_FILE
    if request.param == "graph":
        graph.write_bytes(with_pickled_weight(graph.read_bytes(), Touch(mark)))
    else:
        reference = f"{__name__}:called_by_name"
        named = {**json.loads(about.read_text()), "form": "reference", "reference": reference}
        about.write_text(json.dumps(named))
    calls.clear()
    return folder, network, lambda: mark.exists() or bool(calls)


@pytest.mark.parametrize("attack", ["graph", "reference"], indirect=True)
def test_no_form_runs_code_without_trust(attack, monkeypatch):
    folder, network, has_run = attack
    with pytest.raises(saved.UntrustedModelError, match="can run any code"):
        opened(folder, trust=False)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with pytest.raises(saved.UntrustedModelError, match=r"MLFLOW_ALLOW_PICKLE_DESERIALIZATION"):
        _load_pyfunc(str(folder))
    found = opened(folder, trust=False, into=nn.Linear(2, 1))
    assert torch.equal(found.module.weight, network.weight)
    assert found.factory is None
    assert not has_run()
    # With trust the attack works, so the lines above are not true of a harmless file.
    with suppress(RuntimeError):
        opened(folder)
    assert has_run()


def test_weights_of_another_network_are_refused(tmp_path):
    saved.save(tmp_path, nn.Linear(2, 1).eval(), description=FLAT, about={})
    with pytest.raises(ValueError, match=r"weights are not those of a Linear: .*size mismatch"):
        opened(tmp_path, trust=False, into=nn.Linear(3, 1))


def test_other_versions_are_told(tmp_path):
    saved.save(tmp_path, Words().eval(), description=WORDS, about={"sparkdl_runner": "9.0"})
    file = tmp_path / saved.ABOUT_FILE
    about = json.loads(file.read_text())
    (tmp_path / saved.GRAPH_FILE).write_bytes(b"of another time")
    file.write_text(json.dumps({**about, "torch": "1.0"}))
    with pytest.raises(RuntimeError, match=r"cannot be opened.*saved with torch 1.0, and this is"):
        opened(tmp_path)
    file.write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(ValueError, match=r"format 99 by sparkdl_runner 9.0"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": null}', "[" * 100_000])
def test_a_description_that_is_none_is_told(tmp_path, text):
    saved.save(tmp_path, nn.Linear(2, 1).eval(), description=FLAT, about={})
    (tmp_path / saved.ABOUT_FILE).write_text(text)
    with pytest.raises(ValueError, match=r"network\.json does not describe a network"):
        opened(tmp_path, trust=False, into=nn.Linear(2, 1))
