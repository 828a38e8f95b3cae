"""A command as a process: its flags, its exit code, and a clean end when it is asked to stop.

It needs nothing but this package, so that a command that says what is missing can run without it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from sparkdl_runner.base import renamed
from sparkdl_runner.base.nearest import nearest
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.base.standard_output import kept_for_programs
from sparkdl_runner.cli import json_document
from sparkdl_runner.errors import ConfigError, LaunchError, RunnerError, ScriptExitedError

DONE = 0
FAILED = 1
BAD_CONFIG = 2
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

EXIT_CODES = """
exit codes:
  0    done
  1    it was begun and failed
  2    the configuration cannot work; no rank was started
  130  interrupted (SIGINT)
  143  asked to end (SIGTERM); nothing is left running
  of a script that ended itself in a rank: the script's own
"""


class Terminated(KeyboardInterrupt):
    """SIGTERM. It is a KeyboardInterrupt, so that code cleans up as after Ctrl-C."""


class Parser(argparse.ArgumentParser):
    """Reads flags; what is wrong with them is one sentence with what was probably meant."""

    pairs_flag = ""
    """The flag by which arguments of a person's own function are given, if there is one."""
    flag_of_key: Mapping[str, str] = {}
    """By the name of a setting, the flag that takes it as ``name=value``."""
    elsewhere: Mapping[str, str] = {}
    """The command that has a flag, by flags that this one lacks."""
    earlier_flags: Mapping[str, str] = {}
    """Today's flags by earlier ones, which are taken with a warning."""
    takes_more = False
    """Whether arguments of a person's own script follow after ``--``."""
    _given: Sequence[str] = ()

    def __init__(self, **settings: Any) -> None:
        # An abbreviation that works today may be ambiguous in the next release.
        super().__init__(**{**settings, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Raises instead of ending the process."""
        # A flag that is missing may be one that is misspelt.
        if message.startswith("the following arguments are required"):
            flags = [text.partition("=")[0] for text in self._given if text.startswith("--")]
            for flag in flags:
                if flag not in self._option_string_actions:
                    message = f"there is no {flag}{self._meant(flag)}"
                    break
        ends = message.endswith((".", "?"))
        raise ConfigError(message if ends else f"{message}; --help lists the flags.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Does as argparse, and suggests a flag for an unknown one.

        Of a command that has others below it, each reads its own.
        """
        given = [self._todays(text) for text in (sys.argv[1:] if args is None else args)]
        self._given = given
        parsed, unknown = super().parse_known_args(given, namespace)
        if unknown:
            self.error(f"there is no {unknown[0]}{self._meant(unknown[0].partition('=')[0])}")
        return parsed, unknown

    def _todays(self, text: str) -> str:
        flag, equals, value = text.partition("=")
        if flag not in self.earlier_flags:
            return text
        today = self.earlier_flags[flag]
        tell(renamed.sentence(flag, today))
        return f"{today}{equals}{value}"

    def _meant(self, given: str) -> str:
        flags = self._flags()
        longer = [flag for flag in flags if len(given) > len("--") and flag.startswith(given)]
        name = given.removeprefix("--").replace("-", "_")
        if name in self.flag_of_key:
            return f"; did you mean {self.flag_of_key[name]} {name}=…?"
        if given in self.elsewhere:
            other = self.elsewhere[given]
            return f"; {other} has it: see sparkdl-runner {other} --help."
        near = f"; did you mean {longer[0]!r}?" if longer else self._nearest(given, flags)
        if near == "." and self.pairs_flag and given.startswith("--"):
            hint = f"; an argument of the function is given by {self.pairs_flag} {name}=…"
            return f"{hint}, one of a script after --" if self.takes_more else hint
        return near

    @staticmethod
    def _nearest(given: str, flags: list[str]) -> str:
        # All begin alike, which would make short ones seem near.
        near = nearest(given.lstrip("-"), [flag.removeprefix("--") for flag in flags])
        return near.replace("mean '", "mean '--")

    def _flags(self) -> list[str]:
        """All flags, also those of sub-commands."""
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    flags += parser._flags()
        return flags


def guarded(name: str, action: Callable[[], Mapping[str, Any]], argv: Sequence[str]) -> int:
    """Runs an action and turns its errors into a line on stderr and an exit code.

    What a person can mend is one sentence on the standard error stream; what is a defect, of this
    package or of another, keeps its traceback. With ``--json`` in ``argv``, standard output gets
    what the action returned, or the error, as one document. Its ``exit_code`` is 0 by default.
    """
    if not json_document.is_wanted(argv):
        return int(_result_of(name, action).get("exit_code", DONE))
    command = name.removeprefix("sparkdl-runner ")
    with kept_for_programs():
        try:
            result = _result_of(name, action)
        except Exception as error:
            json_document.write(command, json_document.failed(error, FAILED))
            raise
        json_document.write(command, result)
    return int(result.get("exit_code", DONE))


def _result_of(name: str, action: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        with _terminable():
            return action()
    except ConfigError as error:
        return _failed(name, error, BAD_CONFIG)
    except LaunchError as error:
        # Nothing was started: too few slots, a server that does not answer, a missing backend.
        return _failed(name, error, BAD_CONFIG)
    except RunnerError as error:
        if isinstance(error.__cause__, ScriptExitedError):
            return _failed(name, error, error.__cause__.exit_code)
        return _failed(name, error, FAILED)
    except Terminated:
        return _failed(name, Terminated("asked to end by SIGTERM; all ranks are gone."), TERMINATED)
    except KeyboardInterrupt:
        return _failed(name, KeyboardInterrupt("interrupted; all ranks are gone."), INTERRUPTED)


def _failed(name: str, why: BaseException, code: int) -> Mapping[str, Any]:
    print(f"{name}: {why}", file=sys.stderr, flush=True)
    return json_document.failed(why, code)


@contextmanager
def _terminable() -> Iterator[None]:
    """Makes the first SIGTERM raise ``Terminated``, and ignores the ones after it."""

    def end(signum: int, frame: object) -> NoReturn:
        # A second one must not interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        threading.Thread(target=_end_with_parent, name="sparkdl-parent", daemon=True).start()
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with_parent() -> None:
    """Ends this process when its parent spark-submit is gone, which alone gets signals."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
