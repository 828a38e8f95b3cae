"""Launchers that a script starts inside of a rank: an error that says what to write instead."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sparkdl_runner.base.importing import when_imported
from sparkdl_runner.errors import RunnerError

_COMMANDS = ("torchrun", "horovodrun", "mpirun", "deepspeed", "accelerate-launch")
_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher"),
    *("horovod.runner", "horovod.runner.launch", "deepspeed.launcher.runner"),
    *("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
)
_INSTEAD = (
    "leave it out. The ranks are there already, and each has RANK, LOCAL_RANK, WORLD_SIZE, "
    "MASTER_ADDR and MASTER_PORT in its environment"
)
_CALL_IT = (
    "call the function itself, with int(os.environ['LOCAL_RANK']) for its first argument, and "
    "init_process_group() without address and rank"
)

# Functions that start processes: module, name, name for people, and what to write instead.
_FUNCTIONS = (
    ("torch.multiprocessing", "spawn", "torch.multiprocessing.spawn()", _CALL_IT),
    ("torch.multiprocessing", "start_processes", "start_processes()", _CALL_IT),
    ("torch.multiprocessing.spawn", "spawn", "torch.multiprocessing.spawn()", _CALL_IT),
    ("torch.multiprocessing.spawn", "start_processes", "start_processes()", _CALL_IT),
    ("torch.distributed.launcher.api", "launch_agent", "torchrun", _INSTEAD),
    ("horovod", "run", "horovod.run()", f"call the function itself, and {_INSTEAD}"),
    ("horovod.runner", "run", "horovod.run()", f"call the function itself, and {_INSTEAD}"),
    ("horovod.runner.launch", "run_commandline", "horovodrun", _INSTEAD),
    ("pyspark.ml.torch.distributor", "TorchDistributor", "TorchDistributor", _CALL_IT),
    ("accelerate.launchers", "notebook_launcher", "accelerate's notebook_launcher()", _CALL_IT),
)


def refuse_launchers(script: str) -> None:
    """Makes launchers raise in this process, from now on.

    Each of N ranks would start N more, which find no peers, or the wrong ones.

    Args:
        script: What a person calls it.
    """
    for module, name, called, instead in _FUNCTIONS:
        when_imported(module, functools.partial(_replace, name, _raising(script, called, instead)))
    sys.addaudithook(functools.partial(_refuse_command, script))


def _replace(name: str, by: Callable[..., Any], module: Any) -> None:
    if hasattr(module, name):
        setattr(module, name, by)


def _raising(script: str, called: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        _refuse(script, called, instead)

    return refuse


def _refuse(script: str, called: str, instead: str) -> NoReturn:
    raise RunnerError(
        f"{script} starts ranks of its own by {called}, and it runs in a rank already "
        f"({os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}): {instead}."
    )


def _refuse_command(script: str, event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: sees each command before it is started."""
    if event == "os.system":
        launcher = launcher_in(["sh", "-c", os.fsdecode(arguments[0])])
    elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
        launcher = launcher_in(arguments[1])
    else:
        return
    if launcher:
        _refuse(script, launcher, _INSTEAD)


def launcher_in(command: Any) -> str:
    """The launcher that a command starts; "" if it starts none.

    Args:
        command: A program and its arguments, or a text.
    """
    kinds = (str, bytes, os.PathLike)
    given = [command] if isinstance(command, kinds) else list(command)
    words = [os.fsdecode(word) for word in given if isinstance(word, kinds)]
    if not words:
        return ""
    program, rest = os.path.basename(words[0]), words[1:]
    if program in ("sh", "bash", "dash", "zsh") and "-c" in rest[:-1]:
        return _launcher_in_text(rest[rest.index("-c") + 1])
    if len(words) == 1 and " " in words[0].strip():
        return _launcher_in_text(words[0])
    # A script that pip installed is started by its interpreter where that is named.
    if program.startswith("python"):
        return _launcher_in_python(rest)
    if program == "accelerate":
        return "accelerate launch" if rest[:1] == ["launch"] else ""
    return program if program in _COMMANDS else ""


def _launcher_in_python(arguments: Sequence[str]) -> str:
    for place, word in enumerate(arguments):
        if word == "-m":
            module = "".join(arguments[place + 1 : place + 2])
            return f"python -m {module}" if module in _MODULES else ""
        if not word.startswith("-"):
            return launcher_in(arguments[place:])
    return ""


def _launcher_in_text(text: str) -> str:
    """The launcher that a shell's command begins with, after the variables that it sets."""
    try:
        words = shlex.split(text)
    except ValueError:
        return ""
    while words and ("=" in words[0] or words[0] in ("exec", "env", "nohup")):
        words = words[1:]
    return launcher_in(words)
