"""From module:function to the function."""

from __future__ import annotations

import sys

import cloudpickle
import pytest

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.training.entry_point import find_function


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules, by_value = set(sys.modules), cloudpickle.list_registry_pickle_by_value()
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    for name in cloudpickle.list_registry_pickle_by_value() - by_value:
        cloudpickle.cloudpickle._PICKLE_BY_VALUE_MODULES.discard(name)


def test_a_module_in_the_working_folder_and_its_neighbours_travel_by_value(tmp_path):
    (tmp_path / "sjob_helper.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "sjob_training.py").write_text(
        "import sjob_helper\nimport json\n\ndef train(x):\n    return sjob_helper.twice(x)\n"
    )
    train = find_function("sjob_training:train")
    assert train(2) == 4
    packed = cloudpickle.dumps(train)
    # As on a host that has neither file.
    for name in ("sjob_training", "sjob_helper"):
        del sys.modules[name]
        (tmp_path / f"{name}.py").unlink()
    assert cloudpickle.loads(packed)(3) == 6
    assert "json" not in cloudpickle.list_registry_pickle_by_value()


def test_a_file_by_its_path(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "json.py").write_text("def train():\n    return 'mine'\n")
    assert find_function("elsewhere/json.py:train")() == "mine"
    import json

    assert json.loads("1") == 1, "a library's module is not hidden by it"


def test_an_installed_module_travels_by_name():
    assert find_function("os.path:join")("a", "b") == "a/b"
    assert b"posixpath" in cloudpickle.dumps(find_function("os.path:join"))


def test_a_method_of_a_class(tmp_path):
    (tmp_path / "sjob_class.py").write_text(
        "class Task:\n    @staticmethod\n    def run():\n        return 5\n"
    )
    assert find_function("sjob_class:Task.run")() == 5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("train", "is not of the form module:function or file.py:function."),
        (":train", "is not of the form"),
        ("sjob_traning:train", "there is no module 'sjob_traning' in "),
        ("sjob_traning:train", "did you mean 'sjob_training'?"),
        ("sjob_training:trian", "sjob_training has no function 'trian'; did you mean 'train'?"),
        ("sjob_training:SIZE", "sjob_training:SIZE is 3, and no function."),
        ("nowhere.py:train", "there is no file nowhere.py."),
        ("sjob_broken:train", "importing sjob_broken failed with ZeroDivisionError: "),
        ("sjob_broken.py:train", "importing sjob_broken.py failed with ZeroDivisionError: "),
        ("sjob_ends:train", "importing sjob_ends asked the process to end (SystemExit(3)): put"),
        ("sjob_ends.py:train", "importing sjob_ends.py asked the process to end (SystemExit(3))"),
        ("sjob_needs:train", "importing sjob_needs failed with ModuleNotFoundError: No module"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, text, sentence):
    (tmp_path / "sjob_training.py").write_text("SIZE = 3\n\ndef train():\n    pass\n")
    (tmp_path / "sjob_broken.py").write_text("1 / 0\n")
    (tmp_path / "sjob_ends.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "sjob_needs.py").write_text("import sjob_not_installed\n")
    with pytest.raises(ConfigError) as raised:
        find_function(text)
    assert sentence in str(raised.value)
