"""A script runs as ``python`` runs it: compared with python itself, in processes without ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.script.script import Script

PROBE = '''"""Its words."""
import json, os, pickle, sys
import beside

class Mine:
    pass

assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)
main = sys.modules["__main__"]
print(json.dumps({
    "name": __name__, "file": __file__, "doc": __doc__, "package": __package__,
    "spec": __spec__ and __spec__.name, "loader": type(__loader__).__name__,
    "argv": sys.argv, "path": sys.path[0], "folder": os.getcwd(), "is_main": main.Mine is Mine,
    "beside": beside.__file__, "names": sorted(name for name in globals()),
}))
'''
# How a rank calls it, without one.
CALL = """
import json, os, pickle, sys
from sparkdl_runner.launch.wire.function import call
from sparkdl_runner.launch.worker.user_traceback import user_traceback
script, args, module, travels = json.loads(sys.argv[1])
from sparkdl_runner.launch.script.script import Script
from sparkdl_runner.launch.driver.calls.call import pack
found = Script.find(script, args, module=module, travels=travels)
try:
    call(pack(found))
except SystemExit as stop:
    raise AssertionError("a script's end is no end of its rank") from stop
except BaseException as error:
    import traceback
    name = type(error).__name__
    error.__traceback__ = error.__traceback__.tb_next
    shown = error.with_traceback(user_traceback(error))
    sys.stderr.write("".join(traceback.format_exception(shown)))
    sys.exit(getattr(error, "exit_code", 1))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    for place in (tmp_path, package):
        (place / "probe.py").write_text(PROBE)
    (package / "__main__.py").write_text(PROBE)
    (tmp_path / "beside.py").touch()
    return tmp_path


def python(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def ours(
    folder: Path, script: str, *args: str, module: bool = False, copy: Path | None = None
) -> subprocess.CompletedProcess[str]:
    call = json.dumps([script, args, module, copy is not None])
    root = str(Path(__file__).parents[4])
    environment = {**os.environ, "PYTHONPATH": root, "SPARKDL_RUNNER_FOLDER": str(copy)}
    return subprocess.run(
        [sys.executable, "-P", "-c", CALL, call],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.mark.parametrize("script", ["probe.py", "package/../probe.py"])
def test_a_script_in_its_place_sees_what_python_shows_it(folder, script):
    # Where a package has a module of the script's own name, the script comes first.
    expected = json.loads(python(folder, script, "--epochs", "3").stdout)
    done = ours(folder, script, "--epochs", "3")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    expected["file"] = os.path.normpath(expected["file"])
    assert found == expected


@pytest.mark.parametrize("name", ["package.probe", "package", "probe"])
def test_a_module_in_its_place_sees_what_python_shows_it(folder, name):
    expected = json.loads(python(folder, "-m", name, "-x").stdout)
    done = ours(folder, name, "-x", module=True)
    assert done.stderr == ""
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(("script", "module"), [("probe.py", False), ("package.probe", True)])
def test_a_copy_sees_what_python_shows_it_in_the_copys_folder(
    folder, tmp_path_factory, script, module
):
    copy = tmp_path_factory.mktemp("executor") / "rank"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    cwd, given = (folder, script) if module else (elsewhere, str(folder / script))
    done = ours(cwd, given, "3", module=module, copy=copy)
    found = json.loads(done.stdout)
    words = ["-m", script, "3"] if module else [str(copy / script), "3"]
    expected = json.loads(python(copy, *words).stdout)
    assert found == expected
    assert found["folder"] == found["path"] == str(copy)


ENDS = {
    "raise ValueError('bad rows')": 1,
    "import sys; sys.exit(3)": 3,
    "import sys; sys.exit('no rows')": 1,
    "import sys; sys.exit()": 0,
    "import sys; sys.exit(0)": 0,
    "raise SystemExit": 0,
    "import argparse; argparse.ArgumentParser(prog='p').parse_args(['--x'])": 2,
    "import missing_module": 1,
    "def f():\n    1 / 0\nf()": 1,
    "class Mine(Exception): pass\nraise Mine('own')": 1,
}


@pytest.mark.parametrize("code", ENDS)
def test_a_script_ends_as_under_python(folder, code):
    (folder / "end.py").write_text(code + "\n")
    expected, found = python(folder, "end.py"), ours(folder, "end.py")
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert found.returncode == ENDS[code]
    exited = "sparkdl_runner.errors.ScriptExitedError: end.py ended with exit code"
    shown = [line for line in found.stderr.splitlines() if not line.startswith(exited)]
    assert shown == expected.stderr.splitlines()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "train.py",
            "def f(:\n",
            r"train.py is no script that Python 3.\d+ can run: invalid syntax in line 1",
        ),
        ("train.sh", "set -e\necho done\n", "train.sh is no script that Python .*; other programs"),
        ("train.py", "x = '\0'", "train.py is no script"),
        ("train.py", "\x7fELF\x02", "train.py is no script"),
        ("train.ipynb", '{"cells": []}', "train.ipynb is a notebook, and no script: write one"),
    ],
)
def test_what_is_no_python_is_refused_before_ranks_start(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(LaunchError, match=words):
        Script.find(tmp_path / name, travels=False)


def test_a_script_that_is_not_there_is_refused_with_the_nearest(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(LaunchError, match=r"no script prob.py in .*; did you mean 'probe.py'\?"):
        Script.find("prob.py", travels=True)
    with pytest.raises(LaunchError, match="package is a folder: give the script in it"):
        Script.find("package", travels=True)
    with pytest.raises(LaunchError, match=r"no module package.prob in .* or on the path"):
        Script.find("package.prob", module=True, travels=True)
    with pytest.raises(LaunchError, match=r"'package/probe.py' is no name .* give 'package.probe'"):
        Script.find("package/probe.py", module=True, travels=True)
    (folder / "package" / "__main__.py").unlink()
    with pytest.raises(LaunchError, match="package is a package without a __main__"):
        Script.find("package", module=True, travels=True)


@pytest.mark.parametrize(
    ("script", "args", "words"),
    [
        (print, (), "script is <built-in function print>.*A function is for run"),
        ("probe.py", ["--epochs", 3], r"args\[1\] is 3, a int; .* as on a command line: '3'"),
        ("probe.py", "--epochs 3", "args is '--epochs 3', a str; it must be a list of texts"),
        ("probe.py", {"epochs": "3"}, "args is {'epochs': '3'}, a dict; it must be a list"),
    ],
)
def test_arguments_that_are_no_texts_are_refused(folder, monkeypatch, script, args, words):
    monkeypatch.chdir(folder)
    with pytest.raises(TypeError, match=words):
        Script.find(script, args, travels=False)


def test_of_an_installed_module_nothing_travels():
    found = Script.find("json.tool", module=True, travels=True)
    assert (found.archive, found.folder, found.summary()) == (None, "", "")


def test_the_driver_is_told_what_travels_and_what_does_not(folder):
    (folder / ".env").touch()
    found = Script.find(folder / "probe.py", travels=True)
    assert found.summary() == (
        "probe.py travels to the ranks with its folder: 5 files, 1.6 KB. Left out, as files of "
        "secrets: .env. Give ranks a secret by RunConfig(environment=…)"
    )


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        ("import os, mlflow.pytorch as p", True),
        ("def f():\n    from mlflow import log_metric", True),
        ("import mlflows\n# import mlflow", False),
        ("from . import mlflow", False),
    ],
)
def test_what_a_script_imports_is_known(tmp_path, text, imports):
    (tmp_path / "train.py").write_text(text)
    found = Script.find(tmp_path / "train.py", travels=False)
    assert found.imports("mlflow") is imports
