"""A script and its arguments: found and checked on the driver, run as ``__main__`` in each rank."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl_runner.base.nearest import nearest
from sparkdl_runner.base.parsing import undisturbed
from sparkdl_runner.errors import LaunchError, ScriptExitedError
from sparkdl_runner.launch.script.folder import Archive, megabytes, read_folder
from sparkdl_runner.launch.script.launchers import refuse_launchers
from sparkdl_runner.launch.script.main_module import run_file, run_module
from sparkdl_runner.launch.script.module import find_module
from sparkdl_runner.launch.worker.driver_log import log_to_driver
from sparkdl_runner.launch.worker.lifeline import FOLDER

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script or module, as ``torchrun`` takes it. Calling it in a rank runs it."""

    given: str
    """The path or module name, as the user wrote it."""
    args: tuple[str, ...] = field(repr=False)
    is_module: bool
    folder: str
    """The ``sys.path[0]`` on the driver; "" for an installed module."""
    file: str
    """The script's file; of a module, where the driver has it; "" if that is not known."""
    archive: Archive | None = field(default=None, repr=False)
    """The folder's files, where they travel; None to run it where it is."""

    @classmethod
    def find(
        cls,
        script: str | os.PathLike[str],
        args: Sequence[str] = (),
        *,
        module: bool = False,
        files: Sequence[str] = (),
        travels: bool,
    ) -> Script:
        """Checks a script, and reads what travels with it.

        Args:
            script: Its path, or the name of a module.
            args: What follows the script on a command line.
            module: Whether ``script`` is the name of a module, as after ``python -m``.
            files: Patterns of files that travel beside the Python files.
            travels: Whether its folder is sent to the ranks.

        Raises:
            TypeError: An argument is no text, or they are no list.
            ValueError: A pattern of ``files`` matches nothing.
            LaunchError: The script is not there or no Python, or its folder cannot travel.
        """
        given = os.fspath(script) if isinstance(script, os.PathLike) else script
        if not isinstance(given, str) or not given:
            raise TypeError(
                f"script is {script!r}, a {type(script).__name__}; it must be the path of a Python "
                "file, or with module=True the name of a module. A function is for run()."
            )
        args = check_texts("args", args, example='["--epochs", "3"]')
        files = check_texts("files", files, example='["*.yaml", "data/"]')
        if module:
            folder, file = find_module(given)
        else:
            file = _find_file(given)
            folder = os.path.dirname(os.path.realpath(file))
        if file:
            check_python(given, file)
        archive = None
        if travels and folder:
            archive = read_folder(Path(folder), files)
        return cls(
            given=given, args=args, is_module=module, folder=folder, file=file, archive=archive
        )

    @property
    def name(self) -> str:
        """The name in messages: the file's, or the module's."""
        return self.given if self.is_module else os.path.basename(self.given)

    def imports(self, package: str) -> bool:
        """Whether the script's own file imports a package."""
        if not self.file:
            return False
        tree = undisturbed(lambda: ast.parse(Path(self.file).read_bytes()))
        nodes = list(ast.walk(tree))
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        names += [
            name.name for node in nodes if isinstance(node, ast.Import) for name in node.names
        ]
        return any(name.partition(".")[0] == package for name in names)

    def summary(self) -> str:
        """The files that travel with it, in words; "" if there are none."""
        if self.archive is None:
            return ""
        count, size = len(self.archive.files), megabytes(self.archive.size_bytes)
        text = f"{self.name} travels to the ranks with its folder: {count} files, {size}"
        if count == 1:
            text = f"{self.name} travels to the ranks: {size}"
        if self.archive.left_out:
            names = ", ".join(self.archive.left_out[:_SHOWN])
            text += (
                f". Left out, as files of secrets: {names}. Give ranks a secret by "
                "RunConfig(environment=…)"
            )
        return text

    def __call__(self) -> None:
        """Runs the script in this process, as ``python script.py`` does.

        Raises:
            ScriptExitedError: It ended with an exit code other than 0.
            BaseException: What it raised.
        """
        refuse_launchers(self.name)
        folder, file = self.folder, os.path.abspath(self.file)
        if self.archive is not None:
            folder = os.environ[FOLDER]
            self.archive.unpack(Path(folder))
            os.chdir(folder)
            file = os.path.join(folder, os.path.relpath(os.path.realpath(self.file), self.folder))
        sys.argv = [file if self.archive is not None else self.given, *self.args]
        if folder:
            sys.path.insert(0, folder)
        try:
            if self.is_module:
                run_module(self.given)
            else:
                run_file(file)
        except SystemExit as stop:
            code, text = _exit_code(stop.code)
            if code == 0:
                return
            raise ScriptExitedError(
                f"{self.name} ended with exit code {code}{text}", code
            ) from None
        finally:
            if self.archive is not None:
                self._tell_what_is_lost(Path(folder))

    def _tell_what_is_lost(self, folder: Path) -> None:
        """Names the files that the script wrote into its private folder, which goes with it."""
        known = {file.name for file in self.archive.files} if self.archive is not None else set()
        with suppress(OSError):
            sizes = {
                path.relative_to(folder).as_posix(): path.lstat().st_size
                for path in sorted(folder.rglob("*"))
                if "__pycache__" not in path.parts and not path.is_dir()
            }
            new = [f"{name} ({megabytes(sizes[name])})" for name in sizes if name not in known]
            if new:
                more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
                log_to_driver(
                    f"{self.name} wrote into its working folder, which is deleted now: "
                    f"{', '.join(new[:_SHOWN])}{more}. Give it a path that all hosts see, or log "
                    "artifacts to MLflow."
                )


def check_texts(name: str, values: Any, *, example: str) -> tuple[str, ...]:
    """A list of texts as a tuple.

    Raises:
        TypeError: It is none.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(
            f"{name} is {values!r}, a {type(values).__name__}; it must be a list of texts, such as "
            f"{example}."
        )
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise TypeError(
                f"{name}[{place}] is {value!r}, a {type(value).__name__}; it must be a text, as on "
                f"a command line: {str(value)!r}."
            )
    return tuple(values)


def check_python(given: str, file: str) -> None:
    """Compiles a file, so that a script which cannot run is refused before ranks start.

    Raises:
        LaunchError: It is no Python, or cannot be read.
    """
    if file.endswith(".ipynb"):
        raise LaunchError(
            f"{given} is a notebook, and no script: write one from it by jupyter nbconvert --to "
            "script."
        )
    try:
        source = Path(file).read_bytes()
    except OSError as error:
        raise LaunchError(f"{given} cannot be read: {error}.") from error
    try:
        compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        reason = str(error)
        if isinstance(error, SyntaxError):
            reason = f"{error.msg} in line {error.lineno}" if error.lineno else error.msg
        raise LaunchError(
            f"{given} is no script that Python {sys.version_info[0]}.{sys.version_info[1]} can "
            f"run: {reason}. Give a file of Python source; other programs are not started."
        ) from None


def _find_file(given: str) -> str:
    path = Path(given)
    if path.is_file():
        return os.path.abspath(path)
    if path.is_dir():
        raise LaunchError(
            f"{given} is a folder: give the script in it, or with module=True (-m) the package."
        )
    beside = path.parent if path.parent.is_dir() else Path()
    near = nearest(path.name, [file.name for file in beside.glob("*.py")])
    if beside != Path():
        near = near.replace("mean '", f"mean '{beside}{os.sep}")
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    raise LaunchError(f"there is no script {given}{where}{near}")


def _exit_code(code: object) -> tuple[int, str]:
    """The exit code, and what to add to a sentence; a text is printed, as Python does."""
    if code is None:
        return 0, ""
    if isinstance(code, int):
        return code, ""
    print(code, file=sys.stderr, flush=True)
    return 1, f": {code}"
