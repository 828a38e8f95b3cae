"""What a configuration may say, and the one sentence on what it may not."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.parsing.yaml_file import parse_value, read_yaml
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.jobs.tuning.settings import TuneSettings
from sparkdl_runner.launch.backends import BACKENDS
from sparkdl_runner.launch.config import RunConfig

GOOD = {"example": "digits", "num_proc": 2}
*KNOWN, LAST = map(repr, sorted(BACKENDS))


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    return str(path)


def test_a_whole_file(tmp_path):
    path = written(
        tmp_path,
        """
        function: shop.training:train
        backend: torch
        num_proc: 8
        data:
          train_data: /data/train
          test_data: {table: main.shop.test, columns: [features, label]}
        hyperparameters: {learning_rate: 1e-4, epochs: 3, name: 1e4x}
        run_config: {max_restarts: 2, hang_timeout_seconds: null}
        tracking: {experiment: shop, registered_model_name: shop, alias: champion}
        """,
    )
    settings = load(TrainSettings, path, {})
    assert settings.data["train_data"].path == "/data/train"
    assert settings.data["test_data"].columns == ["features", "label"]
    assert settings.hyperparameters == {"learning_rate": 1e-4, "epochs": 3, "name": "1e4x"}
    assert settings.run_config.build() == RunConfig(max_restarts=2, hang_timeout_seconds=None)
    assert settings.wanted_tracking.experiment == "shop"
    assert (settings.tracking.registered_model_name, settings.tracking.alias) == (
        "shop",
        "champion",
    )


SCRIPT = {"script": "train.py", "num_proc": 2}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"data": {"x": "/data/x"}}, "data is for a function, and a script has only args: give it"),
        ({"hyperparameters": {"epochs": 3}}, "hyperparameters is for a function, and a script"),
        ({"checkpoint_url": "/data"}, "checkpoint_url is for a function, and a script has only"),
        ({"module": "train"}, "give either script or module."),
        ({"args": ["--epochs", 3]}, "args"),
        ({"args": "--epochs 3"}, "args"),
    ],
)
def test_a_script_has_only_its_command_line(wrong, words):
    assert load(TrainSettings, None, SCRIPT).place == "train.py"
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(TrainSettings, None, {**SCRIPT, **wrong})


def test_flags_are_put_over_the_file_entry_by_entry(tmp_path):
    path = written(tmp_path, "example: digits\nnum_proc: 2\nhyperparameters: {epochs: 3, a: 1}\n")
    flags = {"num_proc": 4, "hyperparameters": {"epochs": 5}}
    settings = load(TrainSettings, path, flags)
    assert settings.num_proc == 4
    assert settings.hyperparameters == {"epochs": 5, "a": 1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nun_proc": 2}, "there is no key 'nun_proc'; did you mean 'num_proc'?"),
        ({"zzz": 2}, "there is no key 'zzz'; there are function, example, "),
        ({"num_proc": "two"}, "num_proc is 'two'; it should be a valid integer."),
        ({"num_proc": 2.5}, "num_proc is 2.5; it should be a valid integer."),
        ({"num_proc": True}, "num_proc is True; it should be a valid integer."),
        ({"num_proc": None}, "num_proc is None; it should be a valid integer."),
        ({"backend": "mpi"}, f"backend is 'mpi'; it should be {', '.join(KNOWN)} or {LAST}."),
        (
            {"backend": "tensorflow"},
            "backend is tensorflow, and the example is one of torch: give backend torch or",
        ),
        ({"example": None}, "give one of function, script, module, model and example."),
        ({"function": "a:b"}, "give one of function, script, module, model and example."),
        ({"script": "train.py"}, "give one of function, script, module, model and example."),
        ({"args": ["--epochs"]}, "args is for a script; a function has hyperparameters."),
        ({"data": {"x": "/data/x"}}, "the example digits has data of its own: leave data out."),
        (
            {"run_config": {"max_restart": 1}},
            "run_config: there is no key 'max_restart'; did you mean 'm",
        ),
        (
            {"run_config": {"max_restarts": -1}},
            "run_config: max_restarts is -1; it must be 0 or more.",
        ),
        (
            {"run_config": {"max_restarts": "1"}},
            "run_config: max_restarts is '1'; it must be a whole",
        ),
        (
            {"run_config": {"min_num_proc": 3}},
            "min_num_proc is 3, and num_proc=2 starts only 2 ranks",
        ),
        ({"max_restarts": 2}, "no key 'max_restarts'; did you mean run_config.max_restarts?"),
        ({"run_config": 3}, "the flags: run_config is 3; it should be keys and their values."),
        ({"run_config": None}, "run_config is None; it should be keys and their values."),
        (
            {"tracking": {"experimant": "x"}},
            "the flags: tracking: there is no key 'experimant'; did you mean 'experiment'?",
        ),
        (
            {"tracking": {"experiment": 3}},
            "flags: tracking: Tracking: experiment is 3; it must be a text, or None.",
        ),
        ({"tracking": {"alias": "x"}}, "the flags: tracking: alias needs a registered_model_name."),
        ({"tracking": {"alias": 3}}, "the flags: tracking.alias is 3; it should be a text."),
        ({"tracking": True}, "tracking is True; it should be keys and their values, or false."),
        ({"hyperparameters": [1]}, "hyperparameters is [1]; it should be keys and their values."),
        ({"hyperparameters": {3: 1}}, "hyperparameters has the key 3, which is no text: put it "),
        (
            {"checkpoint_url": "/c", "hyperparameters": {"checkpoint_url": "/c"}},
            "hyperparameters.checkpoint_url is also given outside of them.",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(change, sentence):
    with pytest.raises(ConfigError) as raised:
        load(TrainSettings, None, {**GOOD, **change})
    told = str(raised.value)
    assert sentence in told
    assert "\n" not in told
    assert told.endswith((".", "?"))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"table": "t", "path": "/p"}, "give either a table or a path."),
        ({}, "give either a table or a path."),
        ({"tabel": "t"}, "there is no key 'tabel'; did you mean 'table'?"),
        ({"table": "t", "format": "csv"}, "the table t has a format of its own: leave it out."),
        ({"path": "/p", "format": "xls"}, "data.x.format is 'xls'; it should be 'parquet', "),
        (7, "data.x is 7; it should be a text, or keys and their values."),
        ({"path": "/p", "columns": "a"}, "data.x.columns is 'a'; it should be a list."),
        ({"path": "/p", "columns": ["a", 3]}, "data.x.columns.1 is 3; it should be a text."),
    ],
)
def test_a_source_that_is_none(source, sentence):
    with pytest.raises(ConfigError) as raised:
        load(TrainSettings, None, {"function": "a:b", "num_proc": 1, "data": {"x": source}})
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("digits", "table"),
        ("main.shop.digits", "table"),
        ("`my table`.digits", "table"),
        ("/data/digits", "path"),
        ("s3a://bucket/digits", "path"),
        ("digits.csv", "path"),
        ("digits.parquet", "path"),
        ("./digits", "path"),
    ],
)
def test_a_text_is_a_table_or_a_path(text, kind):
    given = {"function": "a:b", "num_proc": 1, "data": {"x": text}}
    source = load(TrainSettings, None, given).data["x"]
    assert getattr(source, kind) == text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parallel": "x"}, "tune.parallel is 'x'; it should be a valid integer, or 'auto'."),
        ({"parallel": 0}, "tune.parallel: it must be 1 or more, or auto."),
        ({"trials": 0}, "tune.trials is 0; it should be greater than or equal to 1."),
        ({"search_space": {}}, "tune.search_space is {}; it should hold at least 1 entry."),
        ({"search_space": {"int": 3}}, "tune.search_space.int is 3; it should be keys and their "),
        (
            {"search_space": {"lr": {"low": "x", "high": 1}}},
            "tune.search_space.lr.low is 'x'; it should be a valid number.",
        ),
        ({"metric": None}, "tune.metric is None; it should be a text."),
    ],
)
def test_a_search_that_is_none(change, sentence):
    search = {"metric": "m", "search_space": {"lr": {"low": 0.1, "high": 1}}}
    given = {**GOOD, "tracking": {"experiment": "e"}, "tune": {**search, **change}}
    with pytest.raises(ConfigError) as raised:
        load(TuneSettings, None, given)
    assert f"the flags: {sentence}" in str(raised.value)
    del search["metric"]
    with pytest.raises(ConfigError, match=r"^the flags: tune\.metric is missing\.$"):
        load(TuneSettings, None, {**given, "tune": search})


@pytest.mark.parametrize("parallel", [1, 2, "auto"])
def test_how_many_trials_at_a_time(parallel):
    search = {"metric": "m", "search_space": {"lr": {"low": 0.1, "high": 1}}, "parallel": parallel}
    given = {**GOOD, "tracking": {"experiment": "e"}, "tune": search}
    assert load(TuneSettings, None, given).tune.parallel == parallel


def test_a_secret_in_a_wrong_value_is_not_shown():
    with pytest.raises(ConfigError) as raised:
        load(TrainSettings, None, {**GOOD, "num_proc": "http://me:hunter22@host"})
    assert "hunter22" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\na: 2\n", "the key 'a' is there twice"),
        ("a: [1", "is no YAML: "),
        ("- 1\n", "holds a list; it must hold keys and their values."),
        ("just text", "holds a text; it must hold keys and their values."),
        ("3", "holds a single value; "),
        ("? [a, b]\n: 1\n", "is no YAML: a key is a list or a mapping, and no text"),
        ("a: {? {b: 1} : 2}\n", "is no YAML: a key is a list or a mapping, and no text"),
        (
            "a: 2025-13-45\n",
            "is no YAML: '2025-13-45' has no value (month must be in 1..12); a text",
        ),
        ("a: !!python/object/apply:os.getpid []\n", "is no YAML: could not determine"),
    ],
)
def test_a_file_that_holds_no_settings(tmp_path, text, sentence):
    with pytest.raises(ConfigError) as raised:
        read_yaml(written(tmp_path, text))
    assert sentence in str(raised.value)


def test_an_empty_file_says_nothing(tmp_path):
    assert read_yaml(written(tmp_path, "# nothing yet\n")) == {}


def test_a_file_that_is_not_there_is_named_with_its_neighbour(tmp_path):
    path = written(tmp_path, "")
    with pytest.raises(ConfigError, match=r"No such file .*; did you mean '.*train.yaml'"):
        read_yaml(path.replace("train", "trian"))
    with pytest.raises(ConfigError, match="there is no folder"):
        read_yaml(str(tmp_path / "nowhere" / "train.yaml"))
    with pytest.raises(ConfigError, match=r"there is no folder .*train\.yaml"):
        read_yaml(f"{path}/train.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"bytes.yaml is no "):
        read_yaml(str(tmp_path / "bytes.yaml"))


def test_a_folder_in_place_of_a_file_is_named_with_the_file_in_it(tmp_path):
    with pytest.raises(ConfigError) as raised:
        read_yaml(str(tmp_path))
    assert str(raised.value) == f"{tmp_path} is a folder, and no YAML file."
    path = written(tmp_path, "")
    with pytest.raises(ConfigError) as raised:
        read_yaml(str(tmp_path))
    assert str(raised.value) == f"{tmp_path} is a folder, and no YAML file; there is {path} in it."


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_that_python_writes_is_read_as_that_number(number):
    found = parse_value(repr(number))
    assert isinstance(found, float)
    assert found == number


@given(st.integers())
def test_every_whole_number_is_read_as_that(number):
    assert parse_value(str(number)) == number


def test_numbers_as_people_write_them():
    assert [parse_value(text) for text in ("1e-4", "1E5", "5e3", "+2e1")] == [1e-4, 1e5, 5e3, 20.0]
    assert math.isinf(parse_value(".inf"))
    assert parse_value("3e") == "3e"
    assert parse_value("[1, 2e-1]") == [1, 0.2]


@pytest.mark.parametrize("text", ["2025-13-45", "? [a, b]", "[1", "!!int x"])
def test_what_is_no_yaml_is_a_text(text):
    assert parse_value(text) == text


def _merging(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}", "b0: &b0 {y: 1}"]
    for level in range(1, levels):
        merged = f"{{<<: [*a{level - 1}, *b{level - 1}]}}"
        lines += [f"a{level}: &a{level} {merged}", f"b{level}: &b{level} {merged}"]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 500, "is nested too deeply"),
        ("a: &a [*a]", "holds itself"),
        ("a: &a\n  <<: *a", "holds itself"),
        (
            "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)),
            "stands for more than 100,000 values",
        ),
        (_merging(25), "stands for more than 100,000 values"),
        (f"a: 0x{'f' * 1000}", "the number is far too large"),
        ("# " + "x" * (256 << 10), "is larger than the 262,144 bytes that are read"),
    ],
)
def test_yaml_that_stands_for_far_too_much(tmp_path, text, sentence):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read_yaml(str(path))


def test_a_pipe_is_read_only_where_the_shell_has_opened_it(tmp_path):
    os.mkfifo(tmp_path / "job.yaml")
    with pytest.raises(ConfigError, match="is a pipe or a device, and no YAML file"):
        read_yaml(str(tmp_path / "job.yaml"))
    reading, writing = os.pipe()
    os.write(writing, b"a: 1")
    os.close(writing)
    assert read_yaml(f"/dev/fd/{reading}") == {"a": 1}
    os.close(reading)


@pytest.mark.parametrize(
    ("given", "place", "is_module"),
    [
        ({"script": "train.py", "files": ["*.yaml"]}, "train.py", False),
        ({"module": "a.b"}, "a.b", True),
    ],
)
def test_a_script_is_given_as_run_script_takes_it(given, place, is_module):
    settings = TrainSettings(**given, num_proc=-2, args=["--epochs", "3"])
    assert settings.script_arguments() == {
        "script": place,
        "args": ["--epochs", "3"],
        "module": is_module,
        "files": given.get("files", []),
    }
